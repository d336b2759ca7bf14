"""What a client is told when the time after SIGTERM is over."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time

import httpx
import pytest

pytestmark = pytest.mark.xdist_group("promises")

FLAGS = ("--kv-memory", "64MiB", "--threads", "1", "--drain-timeout")


@pytest.mark.parametrize("signals", [1, 2])
def test_requests_that_outlast_the_drain_get_a_retryable_error(signals: int) -> None:
    # The second signal does not wait for what the first one grants.
    command = [sys.executable, "-m", "tidemill", "serve", "--port", "0", *FLAGS]
    command.append("1" if signals == 1 else "60")
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "the server did not start"
            found = re.search(r"on (http://\S+) after", line)
        body = {"prompt": "The", "ignore_eos": True, "max_tokens": 4000, "n": 16}
        answers: dict[bool, httpx.Response] = {}

        def ask(stream: bool) -> None:
            answers[stream] = httpx.post(
                f"{found[1]}/v1/completions", json={**body, "stream": stream}, timeout=60
            )

        threads = [threading.Thread(target=ask, args=(stream,)) for stream in (True, False)]
        for thread in threads:
            thread.start()
        time.sleep(1)
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        for thread in threads:
            thread.join(30)
        text = process.stderr.read()
        assert process.wait(15) == 0, text
    finally:
        process.kill()
    assert "Traceback" not in text, text
    whole = answers[False]
    assert whole.status_code == 503 and "retry-after" in whole.headers
    assert "shutting down" in whole.json()["error"]["message"]
    last = answers[True].text.strip().rpartition("data: ")[2]
    assert "shutting down" in json.loads(last)["error"]["message"]
