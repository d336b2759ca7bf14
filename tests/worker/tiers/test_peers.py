"""Blocks of one real engine that another one fetches: the tokens are those of a quiet engine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tidemill import LLM, SamplingParams
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.transfer.link import KEY_VARIABLE

SETTINGS = {"threads": 1, "kv_memory": 8 * 2**20, "max_num_seqs": 4}
GREEDY = SamplingParams(temperature=0.0, max_tokens=40)
PROMPT = [5, 9, 12, 30, 7] * 120


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "a secret of this test")


def free_address() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


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


def until_known(llm: LLM, prompt: list[int], cached: int) -> tuple[list[int], int]:
    """An answer once its prefix comes from the peer, and the most of it that came; other prompts
    come before, so that none of it is there. On a slow machine computing the rest may be sooner."""
    came = 0
    for attempt in range(100):
        ids_of(llm, [attempt % 50 + 3] * 40)  # the announcements come meanwhile
        came = ids_of(llm, [*prompt[: cached // 2], 1, 2])[1]
        if came >= cached // 2 // 32 * 32:
            break
    ids, found = ids_of(llm, prompt)
    return ids, max(came, found)


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
def test_a_prefix_comes_from_a_peer(kv_dtype: str) -> None:
    with pair(kv_dtype=kv_dtype) as (one, two):
        if kv_dtype == "int8":  # blocks of another type are refused, and computed
            want, _ = ids_of(one, PROMPT)
            with LLM(**SETTINGS, kv_dtype=kv_dtype) as quiet:
                want, _ = ids_of(quiet, PROMPT)
            assert ids_of(two, PROMPT) == (want, 0)
            return
        want, cached = ids_of(one, PROMPT)
        assert cached == 0
        got, cached = until_known(two, PROMPT, 576)
        assert got == want and cached >= 288


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
