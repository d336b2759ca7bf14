"""A deployment on Ray: several nodes of one machine, real engines and a real gateway.

Runs where the extra `ray` is installed: `make cluster-test`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

ray = pytest.importorskip("ray")

from tidemill.cluster.config import checked  # noqa: E402
from tidemill.cluster.operate import Operator, connect  # noqa: E402

SECONDS = 120.0
ASK = {
    "model": "brook",
    "messages": [{"role": "user", "content": "Tell me of a mill."}],
    "max_tokens": 200,
    "ignore_eos": True,
    "temperature": 0,
    "stream": True,
}


def _until(true: Callable[[], Any], seconds: float = SECONDS) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline
        time.sleep(0.3)
    return found


class Deployed:
    """A deployment, and requests to its gateway."""

    def __init__(self, nodes: Any) -> None:
        self.nodes = nodes
        self.operator = Operator("test")
        self.key = ""

    def deploy(self, **model: Any) -> None:
        """Bring it about that engines are like this."""
        table = {
            "name": "brook",
            "cpus": 1,
            "args": ["--max-num-seqs", "8", "--threads", "1", "--kv-memory", "64MiB"],
            "target_running": 4,
            "stabilization": 4,
            "cooldown": 1,
            "idle": 5,
            **model,
        }
        config = checked({"name": "test", "gateway": {"port": 18600}, "models": [table]})
        self.key = self.operator.deploy(config).client_key

    def engines(self, phase: str = "ready") -> list[dict[str, Any]]:
        """Those in a phase."""
        found = self.operator.status()["processes"]
        return [one for one in found if one["kind"] == "engine" and one["phase"] == phase]

    @property
    def url(self) -> str:
        """Of the gateway."""
        found = self.operator.status()["processes"]
        ready = [one for one in found if one["kind"] == "gateway" and one["phase"] == "ready"]
        return str(ready[0]["url"]) if ready else ""

    def ask(self, url: str) -> str:
        """The text of an answer."""
        headers = {"authorization": f"Bearer {self.key}"}
        answer = httpx.post(
            f"{url}/v1/chat/completions", json=ASK, headers=headers, timeout=SECONDS
        )
        assert answer.status_code == 200, answer.text
        assert answer.text.endswith("data: [DONE]\n\n"), answer.text[-300:]
        events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        choices = [json.loads(event)["choices"] for event in events]
        return "".join(one[0]["delta"].get("content") or "" for one in choices if one)


@pytest.fixture(scope="module")
def deployed() -> Iterator[Deployed]:
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 80_000_000}
    nodes = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small}
    )
    workers = [nodes.add_node(num_cpus=2, **small) for _ in range(2)]
    # Workers of Ray find what the tests have found.
    before = os.environ.get("PYTHONPATH")
    source = str(Path(__file__).parents[2] / "src")
    os.environ["PYTHONPATH"] = source if before is None else f"{source}{os.pathsep}{before}"
    connect(nodes.address)
    made = Deployed((nodes, workers))
    try:
        yield made
    finally:
        made.operator.down(5, lambda line: None)
        ray.shutdown()
        nodes.shutdown()
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("ray")]


def test_from_zero_under_a_step_of_load_and_back(deployed: Deployed) -> None:
    deployed.deploy(min=0, max=3)
    url = _until(lambda: deployed.url)
    assert not deployed.engines()
    with ThreadPoolExecutor(12) as pool:
        texts = set(pool.map(lambda _: deployed.ask(url), range(48)))
        assert len(texts) == 1
        assert len(deployed.engines()) + len(deployed.engines("starting")) == 3
    _until(lambda: not deployed.operator.status()["pools"]["brook"]["desired"])
    _until(lambda: not _servers())


def test_an_engine_a_node_and_the_controller_are_killed(deployed: Deployed) -> None:
    deployed.deploy(min=2, max=2)
    url = _until(lambda: deployed.url)
    _until(lambda: len(deployed.engines()) == 2)
    expected = deployed.ask(url)
    with ThreadPoolExecutor(6) as pool:
        asked: list[Future[str]] = []

        def go_on() -> None:
            asked.extend(pool.submit(deployed.ask, url) for _ in range(12))

        go_on()
        [server] = [one for one in _servers() if _is_at(one, deployed.engines()[0]["url"])]
        server.kill()
        _until(lambda: len(deployed.engines()) < 2)
        go_on()
        _until(lambda: len(deployed.engines()) == 2)
        ray.kill(ray.get_actor("test/controller"), no_restart=False)
        go_on()
        _until(lambda: len(deployed.engines()) == 2)
        _lose_a_node(deployed)
        go_on()
        _until(lambda: len(deployed.engines()) == 2)
        assert {one.result() for one in asked} == {expected}


def test_another_file_replaces_engines_while_they_are_asked(deployed: Deployed) -> None:
    deployed.deploy(min=1, max=1)
    _until(lambda: len(deployed.engines()) == 1)
    url = _until(lambda: deployed.url)
    [before] = deployed.engines()
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(deployed.ask, url) for _ in range(4)]
        deployed.deploy(min=1, max=1, revision="2")

        def replaced() -> bool:
            asked.append(pool.submit(deployed.ask, url))
            ready = deployed.engines()
            return len(ready) == 1 and ready[0]["name"] != before["name"]

        _until(replaced)
        assert len({one.result() for one in asked}) == 1


def test_the_only_engine_is_killed_within_an_answer(deployed: Deployed) -> None:
    """The gateway holds the stream until there is another engine, and goes on with it there."""
    deployed.deploy(min=1, max=1)
    _until(lambda: len(deployed.engines()) == 1)
    url = _until(lambda: deployed.url)
    expected = deployed.ask(url)
    [before] = deployed.engines()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(deployed.ask, url)
        _until(lambda: deployed.engines()[0]["running"])
        name = next(n for n in ray.util.list_named_actors() if n.endswith(before["name"]))
        ray.kill(ray.get_actor(name))
        assert asked.result() == expected
    assert deployed.engines()[0]["name"] != before["name"]


def _servers() -> list[psutil.Process]:
    """Engines' servers that run on this machine for this deployment."""
    found = []
    for one in psutil.process_iter(["cmdline"]):
        words = one.info["cmdline"] or []
        if "serve" in words and "64MiB" in words and "tidemill" in words:
            found.append(one)
    return found


def _is_at(process: psutil.Process, url: str) -> bool:
    return url.rpartition(":")[2] in process.cmdline()


def _lose_a_node(deployed: Deployed) -> None:
    """One without the gateway, which no other one stands in for here."""
    nodes, workers = deployed.nodes
    found = deployed.operator.status()["processes"]
    [at] = [one["node"] for one in found if one["kind"] == "gateway"]
    lost = next(one for one in workers if one.node_id != at)
    workers.remove(lost)
    nodes.remove_node(lost, allow_graceful=False)
    nodes.add_node(num_cpus=2, object_store_memory=80_000_000)
