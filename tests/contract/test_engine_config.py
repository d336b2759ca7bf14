"""Settings: a wrong one is named before anything is loaded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.config import EngineConfig


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("backend", "tpu"),
        ("dtype", "float16"),
        ("block_size", 33),
        ("block_size", 32.0),
        ("isa", 512),
        ("prefix_caching", 1),
        ("served_name", None),
        ("threads", True),
        ("threads", 0),
        ("threads", 100_000),
        ("max_num_seqs", None),
        ("max_num_seqs", 10**20),
        ("max_step_tokens", 10**9),
        ("max_model_len", 2**31),
        ("kv_memory", -1),
        ("kv_memory", 2**70),
        ("packed_cache", ""),
        ("packed_cache", None),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: Any) -> None:
    config = EngineConfig(**{"model": "m", "served_name": "m", name: value})
    with pytest.raises(TidemillError) as caught:
        config.validate()
    assert caught.value.kind is ErrorKind.CONFIG and caught.value.param == name
    assert name in caught.value.message


def test_what_is_valid_can_be_sent() -> None:
    config = EngineConfig(model="m", served_name="m", kv_memory=2**60, threads=1024).validate()
    assert msgspec.json.decode(msgspec.json.encode(config), type=EngineConfig) == config
