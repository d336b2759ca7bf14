"""Blocks of one real engine that another one fetches: the tokens are those of a quiet engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.addresses import free_address

from tidemill import LLM, SamplingParams
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.memory.tiers import Tiers
from tidemill.transfer.link import KEY_VARIABLE

SETTINGS = {"threads": 1, "kv_memory": 8 * 2**20, "max_num_seqs": 4}
GREEDY = SamplingParams(temperature=0.0, max_tokens=40)
PROMPT = [5, 9, 12, 30, 7] * 120


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "a secret of this test")


def ids_of(llm: LLM, prompt: list[int]) -> tuple[list[int], int]:
    [output] = llm.generate([prompt], GREEDY)
    return list(output.outputs[0].token_ids), output.cached_tokens


@contextmanager
def pair(**changes: object) -> Iterator[tuple[LLM, LLM]]:
    """An engine that listens, and one that fetches of it."""
    address = free_address()
    with (
        LLM(**SETTINGS, kv_listen=address) as one,
        LLM(**{**SETTINGS, "kv_peers": address, **changes}) as two,
    ):
        yield one, two


def until_told(one: LLM, two: LLM) -> None:
    """Wait until the second engine knows what the first one has computed by now: it is told in
    order, so that what comes last is enough."""
    for attempt in range(50):
        last = [40 + attempt] * 96
        ids_of(one, last)
        time.sleep(0.1)
        if ids_of(two, last)[1] >= 64:
            return
    raise AssertionError("nothing is announced")


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
def test_a_prefix_comes_from_a_peer(kv_dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whether computing is sooner is up to the machine; here it never is.
    monkeypatch.setattr(Tiers, "seconds", lambda self, tiers: 0.0)
    with pair(kv_dtype=kv_dtype) as (one, two):
        if kv_dtype == "int8":  # blocks of another type are refused, and computed
            want, _ = ids_of(one, PROMPT)
            with LLM(**SETTINGS, kv_dtype=kv_dtype) as quiet:
                want, _ = ids_of(quiet, PROMPT)
            assert ids_of(two, PROMPT) == (want, 0)
            return
        want, cached = ids_of(one, PROMPT)
        assert cached == 0
        until_told(one, two)
        got, cached = ids_of(two, PROMPT)
        assert got == want and cached >= 576


def test_what_was_on_disk_before_a_start_comes_from_a_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tiers, "seconds", lambda self, tiers: 0.0)
    address, disk = free_address(), f"{tmp_path}:1GiB"
    with LLM(**SETTINGS, kv_disk=disk) as former:
        want, _ = ids_of(former, PROMPT)
    with (
        LLM(**SETTINGS, kv_listen=address, kv_disk=disk) as one,
        LLM(**SETTINGS, kv_peers=address) as two,
    ):
        until_told(one, two)
        got, cached = ids_of(two, PROMPT)
        assert got == want and cached >= 576


def test_peers_need_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("", "short"):
        monkeypatch.setenv(KEY_VARIABLE, key)
        with pytest.raises(TidemillError) as caught:
            LLM(**SETTINGS, kv_listen="127.0.0.1:0")
        assert caught.value.kind is ErrorKind.CONFIG and KEY_VARIABLE in caught.value.message


@pytest.mark.parametrize("name", ["kv_listen", "kv_peers"])
def test_addresses_are_checked(name: str) -> None:
    for wrong in ("here", "a:b", ":1", "a:1,", "a:123456"):
        with pytest.raises(TidemillError) as caught:
            EngineConfig(model="m", served_name="m", **{name: wrong}).validate()
        assert caught.value.param == name
