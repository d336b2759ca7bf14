"""The record of a block: whatever differs from what a reader expects is found."""

from __future__ import annotations

import pytest

from tidemill.contract.moves import Name
from tidemill.memory.prefix import block_key, root_digest
from tidemill.transfer.record import Damaged, checksum_in, header, identity_of

NBYTES = 4096
MODEL = identity_of(["a", 1])


def name_of(i: int) -> Name:
    return block_key(root_digest(), [i] * 32, ((3, b"medium"),) if i % 2 else ())


def test_any_bit_of_a_header_counts() -> None:
    good = header(MODEL, name_of(1), NBYTES, 5)
    assert checksum_in(good, MODEL, name_of(1), NBYTES) == 5
    for bit in range(0, 8 * len(good), 3):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        if 24 <= bit // 8 < 32:  # it is compared with the bytes
            assert checksum_in(bad, MODEL, name_of(1), NBYTES) != 5
            continue
        with pytest.raises(Damaged):
            checksum_in(bad, MODEL, name_of(1), NBYTES)


def test_what_a_header_says_is_compared() -> None:
    found = header(MODEL, name_of(1), NBYTES, 5)
    for identity, name, nbytes in (
        (identity_of(["a", 2]), name_of(1), NBYTES),
        (MODEL, name_of(2), NBYTES),
        (MODEL, (*name_of(1)[:3], ()), NBYTES),
        (MODEL, name_of(1), NBYTES + 1),
    ):
        with pytest.raises(Damaged):
            checksum_in(found, identity, name, nbytes)
    with pytest.raises(Damaged, match="cut off"):
        checksum_in(found[:20], MODEL, name_of(1), NBYTES)


def test_parts_of_an_identity_do_not_run_into_one_another() -> None:
    assert (
        len({identity_of(parts) for parts in (["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""])}) == 4
    )
