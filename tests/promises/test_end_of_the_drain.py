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

CODE = """
import sys
import tidemill.server.run
tidemill.server.run.DRAIN_SECONDS = 1
from tidemill.__main__ import main
sys.argv = ["tidemill", "serve", "--port", "0", "--kv-memory", "64MiB", "--threads", "1"]
main()
"""


@pytest.mark.parametrize("signals", [1, 2])
def test_requests_that_outlast_the_drain_get_a_retryable_error(signals: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", CODE], stderr=subprocess.PIPE, text=True)
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
        assert process.wait(20) == 0, text
    finally:
        process.kill()
    assert "Traceback" not in text, text
    whole = answers[False]
    assert whole.status_code == 503 and "retry-after" in whole.headers
    assert "shutting down" in whole.json()["error"]["message"]
    last = answers[True].text.strip().rpartition("data: ")[2]
    assert "shutting down" in json.loads(last)["error"]["message"]
