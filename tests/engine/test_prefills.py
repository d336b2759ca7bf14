"""Prompts that an engine computes for others: what it is asked for is its own model's, and ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from helpers.fake_engine import fake_core

from tidemill.contract.moves import Name, PeerLoad, PrefillPrompt
from tidemill.engine.prefills import MOST, PrefillService
from tidemill.memory.prefix import block_key, root_digest

PROMPT = [3, 9, 4, 11] * 24


def root(salt: str) -> bytes:
    return root_digest(salt=salt, weights="w", kv_dtype="float32")


def names_of(tokens: list[int], salt: str = "", size: int = 16) -> tuple[Name, ...]:
    found: list[Name] = []
    parent = root(salt)
    for at in range(0, len(tokens), size):
        key = block_key(parent, tokens[at : at + size])
        found.append(key)
        parent = key.digest
    return tuple(found)


def prompt(salt: str = "") -> PrefillPrompt:
    return PrefillPrompt((), salt, "", 1.0, 0, False)


def eventually(test: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not test():
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.fixture
def service() -> Iterator[PrefillService]:
    core, _ = fake_core(step_seconds=0.002, max_step_tokens=16)
    yield PrefillService(core, root, PeerLoad)
    core.close()


def test_a_prompt_is_computed_to_its_end(service: PrefillService) -> None:
    woken: list[int] = []
    prefill = service.begin(names_of(PROMPT), prompt(), lambda: woken.append(1))
    assert prefill is not None
    eventually(lambda: prefill.ended)
    assert woken == [1]
    prefill.cancel()
    assert woken == [1]


def test_a_prompt_is_cancelled(service: PrefillService) -> None:
    prefill = service.begin(names_of(PROMPT), prompt(), lambda: None)
    assert prefill is not None
    prefill.cancel()
    assert prefill.ended


@pytest.mark.parametrize(
    "names",
    [
        (),
        names_of(PROMPT, "other"),  # of another salt than it says
        names_of(PROMPT, size=8),
        names_of(PROMPT)[1:],  # without its beginning
        (*names_of(PROMPT)[:2], names_of([5] * 48)[2]),
        (*names_of(PROMPT)[:1], block_key(names_of(PROMPT)[0][0], [1] * 16, ((0, b"image"),))),
    ],
)
def test_what_is_no_prompt_of_this_model_is_refused(
    names: tuple[Name, ...], service: PrefillService
) -> None:
    assert service.begin(names, prompt(), lambda: None) is None


def test_names_have_the_salt(service: PrefillService) -> None:
    assert service.begin(names_of(PROMPT, "a"), prompt("a"), lambda: None) is not None


def test_so_many_at_a_time(service: PrefillService) -> None:
    begun = [service.begin(names_of([i] * 96), prompt(), lambda: None) for i in range(8, MOST + 9)]
    assert None in begun
    eventually(lambda: all(one is None or one.ended for one in begun))
    assert service.begin(names_of([7] * 96), prompt(), lambda: None) is not None
