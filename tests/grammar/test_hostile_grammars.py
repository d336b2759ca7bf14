"""A short run of the fuzzer of clients' grammars; `make fuzz` runs longer."""

from __future__ import annotations

from pathlib import Path

from fuzz.run import run


def test_what_clients_send_ends_well_or_in_an_error_of_ours(tmp_path: Path) -> None:
    tally = run(150, seed=4, folder=tmp_path, which="clients")
    assert tally.failures == []
    assert sum(tally.inputs.values()) == 150
    for name in ("JSON schemas", "regular expressions", "Lark grammars", "chat bodies", "outputs"):
        assert tally.accepted[name], name
