"""Flags of `tidemill simulate`."""

from __future__ import annotations

import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.cli.simulate import simulate


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--kv-gbps ram=2", "--kv-gbps is of --kv-ram"),
        ("--kv-ram 1GiB --kv-gbps ram=nan", "--kv-gbps takes NAME=NUMBER"),
        ("--kv-ram 1GiB --kv-gbps tape=1", "tiers are"),
        ("--slo ttft=inf", "--slo takes NAME=NUMBER"),
        ("--adapter-size much", "adapter_size is no size"),
    ],
)
def test_what_cannot_be_read_is_named(line: str, says: str) -> None:
    with pytest.raises(TidemillError, match=says) as caught:
        simulate.main(["brook", *line.split()], standalone_mode=False)
    assert caught.value.kind == ErrorKind.CONFIG
