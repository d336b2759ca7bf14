"""The audit log: what was changed, taken out, moved or cut off is found and named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import Connection

from tidemill.base.errors import TidemillError
from tidemill.store import audit
from tidemill.store.audit import ACTS, append, erase, record, sealed_with
from tidemill.store.chain import Row
from tidemill.store.database import Database
from tidemill.store.location import Location
from tidemill.store.prune import prune, prune_requests
from tidemill.store.sealing import Ed25519Sealer, HmacSealer, Sealer, open_sealer
from tidemill.store.tables.audit import AUDIT_HEADS, AUDIT_ROWS, AUDIT_SEALS
from tidemill.store.verify import ChainReport, export, verify

KEY = HmacSealer(b"k" * 32)
ROWS = AUDIT_ROWS.c


def rows(first: int, last: int) -> list[Row]:
    return [Row(1000 * n, "request", "k1", f"req-{n}", f'{{"n":{n}}}') for n in range(first, last)]


async def filled(location: Location, sealer: Sealer | None = KEY, count: int = 20) -> Database:
    """A chain "s1" of `count` rows in two transactions, and three acts (with the chain's begin)."""
    database = Database(location)
    await database.open()

    def fill(connection: Connection) -> None:
        record(connection, "cli:root", "key.create", "k1", {"name": "a"})
        append(connection, "s1", rows(1, count // 2 + 1))
        record(connection, "cli:root", "key.revoke", "k1", {})

    with sealed_with(sealer):
        await database.write(fill)
        await database.write(lambda c: append(c, "s1", rows(count // 2 + 1, count + 1)))
    return database


def checked(sealer: Sealer | None = KEY) -> Callable[[Connection], dict[str, ChainReport]]:
    return lambda c: {report.chain: report for report in verify(c, sealer)}


async def faults(database: Database, sealer: Sealer | None = KEY) -> list[str]:
    found = await database.read(checked(sealer))
    return [str(report.fault) for report in found.values() if report.fault is not None]


async def test_a_whole_log_is_valid(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "SEAL_ROWS", 7)
    database = await filled(location)
    found = await database.read(checked())
    assert [report.fault for report in found.values()] == [None, None]
    assert (found["s1"].rows, found[ACTS].rows, found["s1"].seals) == (20, 3, 2)
    await database.close()


async def test_an_empty_log_is_valid(location: Location) -> None:
    database = Database(location)
    await database.open()
    assert await database.read(checked()) == {}
    await database.close()


def _row(n: int) -> sa.ColumnElement[bool]:
    return sa.and_(ROWS.chain == "s1", ROWS.seq == n)


def _swap(c: Connection) -> None:
    for before, after in ((5, 905), (6, 5), (905, 6)):
        c.execute(AUDIT_ROWS.update().where(_row(before)).values(seq=after))


def _swap_contents(c: Connection) -> None:
    found = {r.seq: r for r in c.execute(sa.select(AUDIT_ROWS).where(ROWS.seq.in_((5, 6))))}
    for to, of in ((5, 6), (6, 5)):
        values = {"detail": found[of].detail, "subject": found[of].subject, "at": found[of].at}
        c.execute(AUDIT_ROWS.update().where(_row(to)).values(values))


def _cut(c: Connection) -> None:
    c.execute(AUDIT_ROWS.delete().where(ROWS.chain == "s1", ROWS.seq > 15))


def _cut_with_head(c: Connection) -> None:
    _cut(c)
    hash = c.execute(sa.select(ROWS.hash).where(_row(15))).scalar_one()
    c.execute(AUDIT_HEADS.update().where(AUDIT_HEADS.c.chain == "s1").values(seq=15, hash=hash))


def _cut_and_unsealed(c: Connection) -> None:
    _cut_with_head(c)
    c.execute(AUDIT_HEADS.update().where(AUDIT_HEADS.c.chain == "s1").values(key_id="", seal=b""))


def _added(c: Connection) -> None:
    values = dict(c.execute(sa.select(AUDIT_ROWS).where(_row(20))).mappings().one())
    c.execute(AUDIT_ROWS.insert().values({**values, "seq": 21}))


def _chain_gone(c: Connection) -> None:
    for table in (AUDIT_ROWS, AUDIT_HEADS, AUDIT_SEALS):
        c.execute(table.delete().where(table.c.chain == "s1"))


def _acts_gone(c: Connection) -> None:
    for table in (AUDIT_ROWS, AUDIT_HEADS):
        c.execute(table.delete().where(table.c.chain == ACTS))


def _set(n: int, **values: object) -> Callable[[Connection], object]:
    return lambda c: c.execute(AUDIT_ROWS.update().where(_row(n)).values(values))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (_set(7, detail='{"n":8}'), "row 7 of chain s1: changed"),
        (_set(7, actor="k2"), "row 7 of chain s1: changed"),
        (_set(7, subject="req-9"), "row 7 of chain s1: changed"),
        (_set(7, at=1), "row 7 of chain s1: changed"),
        (_set(7, kind="key.create"), "row 7 of chain s1: changed"),
        (_set(7, detail=None), "row 7 of chain s1: its detail was removed"),
        (_set(7, hash=b"x" * 32), "row 7 of chain s1: changed"),
        (lambda c: c.execute(AUDIT_ROWS.delete().where(_row(7))), "row 7 of chain s1: missing"),
        (lambda c: c.execute(AUDIT_ROWS.delete().where(_row(1))), "row 1 of chain s1: missing"),
        (
            lambda c: c.execute(AUDIT_ROWS.delete().where(ROWS.chain == "s1", ROWS.seq < 5)),
            "row 1 of chain s1: missing, and all to row 4",
        ),
        (_swap, "row 5 of chain s1: changed, or not in its place"),
        (_swap_contents, "row 5 of chain s1: changed, or not in its place"),
        (_cut, "row 16 of chain s1: missing: the chain was sealed up to row 20"),
        (_cut_with_head, "row 16 of chain s1: missing: the chain was sealed up to row 20"),
        (_added, "row 21 of chain s1: changed"),
        (_chain_gone, "chain s1: all of it is missing"),
        (_acts_gone, "chain acts: all of it is missing"),
        (
            lambda c: c.execute(AUDIT_HEADS.delete().where(AUDIT_HEADS.c.chain == "s1")),
            "chain s1: its head is missing",
        ),
    ],
)
async def test_each_harm_is_named(
    location: Location,
    monkeypatch: pytest.MonkeyPatch,
    harm: Callable[[Connection], object],
    said: str,
) -> None:
    monkeypatch.setattr(audit, "SEAL_ROWS", 10)
    database = await filled(location)
    await database.write(harm)
    [fault] = await faults(database)
    assert fault.startswith(said)
    await database.close()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (_cut, "row 16 of chain s1: missing: the chain's end was row 20"),
        (_cut_with_head, "chain s1: its head was changed: its seal does not fit"),
        (_cut_and_unsealed, "chain s1: its head is not sealed"),
    ],
)
async def test_a_tail_is_missed_before_its_first_seal(
    location: Location, harm: Callable[[Connection], object], said: str
) -> None:
    database = await filled(location)
    assert await database.read(lambda c: c.execute(sa.select(AUDIT_SEALS)).all()) == []
    await database.write(harm)
    assert await faults(database) == [said]
    await database.close()


async def test_who_has_not_the_key_cannot_write_a_chain_anew(location: Location) -> None:
    database = await filled(location)

    def forge(c: Connection) -> None:
        _chain_gone(c)
        append(c, "s1", rows(1, 21))

    with sealed_with(HmacSealer(b"f" * 32)):
        await database.write(forge)
    found = await faults(database)
    assert len(found) == 2 and all("is sealed with the key hmac-" in fault for fault in found)
    assert all("there is no key here" in fault for fault in await faults(database, None))
    await database.close()


async def test_ed25519_is_verified_by_the_public_key(location: Location, tmp_path: Path) -> None:
    private = Ed25519PrivateKey.generate()
    pem = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    database = await filled(location, Ed25519Sealer(pem, "file"))
    reader = Ed25519Sealer(public, "file")
    assert await faults(database, reader) == []
    await database.write(_cut_with_head)
    assert await faults(database, reader) == [
        "chain s1: its head was changed: its seal does not fit"
    ]
    with pytest.raises(TidemillError, match="a server seals with the private one"):
        reader.seal(b"")
    await database.close()


async def test_retention_leaves_a_valid_rest(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "SEAL_ROWS", 4)
    database = await filled(location)
    with sealed_with(KEY):
        assert await database.write(lambda c: prune(c, "s1", 9000).removed) == 8
        assert await database.write(lambda c: prune(c, "s1", 9000).removed) == 0
    found = await database.read(checked())
    assert (found["s1"].rows, found["s1"].pruned, found["s1"].fault) == (12, 8, None)
    await database.write(lambda c: c.execute(AUDIT_ROWS.delete().where(_row(9))))
    assert await faults(database) == ["row 9 of chain s1: missing"]
    await database.close()


async def test_what_is_old_is_pruned_in_parts(location: Location) -> None:
    database = await filled(location)
    with sealed_with(KEY):
        counts = [
            await database.write(lambda c: prune(c, "s1", 10**9, 8).removed) for _ in range(4)
        ]
    assert counts == [8, 8, 4, 0]
    assert await faults(database) == []
    await database.close()


@pytest.mark.parametrize(("seq", "changed"), [(5, False), (5, True), (20, False)])
async def test_what_was_tampered_with_is_not_pruned(
    location: Location, seq: int, changed: bool
) -> None:
    """Else the pruning removes what shows it."""
    database = await filled(location)
    harm = AUDIT_ROWS.update().values(actor="x") if changed else AUDIT_ROWS.delete()
    await database.write(lambda c: c.execute(harm.where(_row(seq))))
    with sealed_with(KEY):
        done = await database.write(lambda c: prune_requests(c, "cli:root", 10**9))
        assert done.removed == 0
        assert [(fault.chain, fault.seq) for fault in done.faults] == [("s1", seq)]
        [fault] = await faults(database)
        assert fault.startswith(f"row {seq} of chain s1")
        # Forced, the log keeps what was wrong.
        done = await database.write(lambda c: prune_requests(c, "cli:root", 10**9, force=True))
        assert done.removed >= 19
    told = sa.select(ROWS.detail).where(ROWS.kind == "audit.prune")
    details = await database.read(lambda c: list(c.execute(told).scalars()))
    assert f"row {seq} of chain s1" in details[-1]
    await database.close()


async def test_a_head_that_was_changed_is_not_sealed_again_by_pruning(location: Location) -> None:
    database = await filled(location)
    await database.write(_cut_with_head)
    with sealed_with(KEY):
        done = await database.write(lambda c: prune(c, "s1", 9000))
    assert done.removed == 0 and "seal does not fit" in done.faults[0].what
    await database.close()


async def test_everything_may_be_pruned_and_the_chain_goes_on(location: Location) -> None:
    database = await filled(location)
    with sealed_with(KEY):
        assert await database.write(lambda c: prune(c, "s1", 10**9).removed) == 20
        assert await faults(database) == []
        await database.write(lambda c: append(c, "s1", rows(21, 23)))
    found = await database.read(checked())
    assert (found["s1"].rows, found["s1"].fault) == (2, None)
    await database.close()


async def test_erased_details_leave_the_chain(location: Location) -> None:
    database = await filled(location)
    assert await database.write(lambda c: erase(c, ROWS.subject.in_(("req-3", "req-4")))) == 2
    found = await database.read(checked())
    assert (found["s1"].erased, found["s1"].fault) == (2, None)
    await database.close()


async def test_servers_append_at_once(location: Location) -> None:
    """Each to its chain, and all to the acts."""
    databases = [Database(location) for _ in range(3)]
    for database in databases:
        await database.open()

    def work(chain: str, n: int) -> Callable[[Connection], None]:
        def append_all(c: Connection) -> None:
            append(c, chain, rows(n, n + 1))
            record(c, "cli:x", "act", chain, {})

        return append_all

    async def run(database: Database, chain: str) -> None:
        for n in range(1, 9):
            await database.write(work(chain, n), patience=30)

    with sealed_with(KEY):
        await asyncio.gather(*(run(d, f"s{i}") for i, d in enumerate(databases)))
    found = await databases[0].read(checked())
    assert {name: report.rows for name, report in found.items()} == {
        **{f"s{i}": 8 for i in range(3)},
        ACTS: 27,
    }
    assert await faults(databases[0]) == []
    for database in databases:
        await database.close()


async def test_the_export_has_everything(location: Location) -> None:
    database = await filled(location)
    lines = await database.read(lambda c: [msgspec.json.decode(line) for line in export(c)])
    kinds = [line["type"] for line in lines]
    assert (kinds.count("row"), kinds.count("head")) == (23, 2)
    assert lines[-2]["detail"] == {"n": 20}
    await database.close()


def test_the_key_follows_from_the_secret_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDEMILL_AUDIT_KEY", raising=False)
    monkeypatch.delenv("TIDEMILL_SECRET", raising=False)
    first, second = open_sealer(tmp_path / "home"), open_sealer(tmp_path / "home")
    assert first.key_id == second.key_id != open_sealer(tmp_path / "other").key_id
    for wrong, said in ((b"short", "it needs 32"), (b"-----BEGIN X", "is not a PEM file")):
        (tmp_path / "key").write_bytes(wrong)
        monkeypatch.setenv("TIDEMILL_AUDIT_KEY", str(tmp_path / "key"))
        with pytest.raises(TidemillError, match=said):
            open_sealer(tmp_path)
    monkeypatch.setenv("TIDEMILL_AUDIT_KEY", str(tmp_path / "none"))
    with pytest.raises(TidemillError, match="cannot be read: No such file"):
        open_sealer(tmp_path)
