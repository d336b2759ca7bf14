"""Whether another engine computes a prompt: by its length, both engines' work, and the way."""

from __future__ import annotations

import pytest
from helpers.drive import Machine, request

from tidemill.contract.moves import PeerLoad, Tier
from tidemill.memory import tiers as tiers_module
from tidemill.sched.cost import Load

PROMPT = list(range(90)) * 2


class Loads:
    """Stands in for `transfer.peers.Peers`: what engines say, and nothing comes of them."""

    def __init__(self, **loads: PeerLoad) -> None:
        self.damaged = 0
        self.said = loads
        self.asked: list[str] = []

    def loads(self) -> list[tuple[str, PeerLoad]]:
        return [*self.said.items()]

    def has(self, digest: bytes) -> bool:
        return False

    def fetch(self, names: object) -> None:
        return None

    def prefill(self, names: object, what: object) -> None:
        self.asked.append(what.address)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Nothing is open."""


def machine(loads: Loads, streams: int = 0) -> Machine:
    """An engine that takes 10 ms for a token, with streams that run."""
    made = Machine(peers=loads, num_blocks=400, max_model_len=400)
    for i in range(streams):
        made.submit(request(f"stream{i}", [i + 1], 200))
    for _ in range(3):
        made.step()
    for tokens in (1, 4, 8, 16, 32) * 40:
        made.scheduler.cost.observe(Load(tokens, tokens * (tokens + 1) // 2, tokens), 0.01 * tokens)
    return made


def chosen(loads: Loads, made: Machine, prompt: list[int] = PROMPT) -> str:
    made.submit(request("asked", prompt, 4))
    for _ in range(30):
        made.step()
        assert made.mover is not None
        while made.mover.work():
            pass
    return loads.asked[0] if loads.asked else ""


@pytest.mark.parametrize(
    ("streams", "pending", "slower", "streams_there", "remote"),
    [
        (0, 0.0, 1.0, 0, False),  # nothing is won
        (0, 0.0, 0.25, 0, True),  # it is quicker
        (4, 0.0, 1.0, 0, True),  # streams here need not wait
        (4, 0.0, 1.0, 8, False),  # more would there
        (4, 60.0, 1.0, 0, False),  # it has much to do
        (4, 0.0, 20.0, 0, False),  # it is slow
    ],
)
def test_an_engine_is_chosen_by_its_work_and_its_speed(
    streams: int, pending: float, slower: float, streams_there: int, remote: bool
) -> None:
    loads = Loads()
    made = machine(loads, streams)
    chunk = made.scheduler.peer_load().chunk
    loads.said["there"] = PeerLoad(pending, slower * chunk, streams_there)
    assert chosen(loads, made) == ("there" if remote else "")


@pytest.mark.parametrize(("bandwidth", "remote"), [(1e9, "there"), (1.0, "")])
def test_a_slow_way_is_not_taken(
    bandwidth: float, remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tiers_module.FIRST_BANDWIDTH, Tier.PEER, bandwidth)
    loads = Loads(there=PeerLoad())
    assert chosen(loads, machine(loads, 4)) == remote


def test_short_prompts_stay() -> None:
    loads = Loads(there=PeerLoad())
    assert chosen(loads, machine(loads, 4), [1, 2, 3, 4]) == ""  # without a full block to bring


def test_the_engine_with_the_least_to_do_is_chosen() -> None:
    loads = Loads(busy=PeerLoad(1.0), idle=PeerLoad(0.1))
    assert chosen(loads, machine(loads, 4)) == "idle"


def test_what_has_to_be_computed_is_told() -> None:
    loads = Loads()
    made = machine(loads, 2)
    quiet = made.scheduler.peer_load()
    assert quiet.pending == 0.0 and quiet.streams == 2 and quiet.chunk > 0.0
    made.submit(request("a", list(range(90)), 4), request("b", list(range(60)), 9))
    told = made.scheduler.peer_load()
    assert told.pending == pytest.approx(150 / 512 * quiet.chunk, rel=0.1)
    made.step()
    assert made.scheduler.peer_load().pending < told.pending


def test_what_does_not_come_is_computed_here() -> None:
    loads = Loads(there=PeerLoad())
    made = machine(loads, 4)
    assert chosen(loads, made) == "there"
    made.run()
    assert len(made.tokens("asked")) == 4
    [stats] = made.scheduler.stats().tiers
    assert stats.lost_prefills == stats.prefills > 0
