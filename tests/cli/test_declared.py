"""Commands made of functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tidemill.cli.declared import argument, command, option

seen: dict[str, Any] = {}


def sample(
    source: str = argument(..., help="What is read."),
    others: tuple[Path, ...] = argument((), help="More of it."),
    kind: str = option(..., help="Needed."),
    count: int = option(3, help="How many."),
    share: float | None = option(None, help="Of what."),
    folder: Path | None = option(None, "--into", help="Where to."),
    seconds: float = option(10.0, help="How long."),
    kept: str = option(0.0, help="A duration."),
    quick: bool = option(True, help="Both ways."),
    force: bool = option(False, "-f", "--force", help="One way."),
    key: tuple[str, ...] = option((), envvar="SAMPLE_KEY", help="Again and again."),
) -> None:
    """Do something.

    With more to say.
    """
    seen.update(locals())


COMMAND = command("sample", sample)


def test_values_have_the_types_of_their_annotations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAMPLE_KEY", raising=False)
    assert COMMAND.main(["a", "--kind", "x"], standalone_mode=False) is None
    assert seen == {
        "source": "a", "others": (), "kind": "x", "count": 3, "share": None, "folder": None,
        "seconds": 10.0, "kept": "0", "quick": True, "force": False, "key": (),
    }  # fmt: skip
    line = "a b c --kind x --count 4 --share 1 --into d --no-quick -f --key k --key l"
    COMMAND.main(line.split(), standalone_mode=False)
    assert seen == {
        "source": "a", "others": (Path("b"), Path("c")), "kind": "x", "count": 4, "share": 1.0,
        "folder": Path("d"), "seconds": 10.0, "kept": "0", "quick": False, "force": True,
        "key": ("k", "l"),
    }  # fmt: skip
    assert type(seen["seconds"]) is float
    monkeypatch.setenv("SAMPLE_KEY", "e")
    COMMAND.main(["a", "--kind", "x"], standalone_mode=False)
    assert seen["key"] == ("e",)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--kind x", "'SOURCE'"),
        ("a", "'--kind'"),
        ("a --kind x --count 1.5", "'--count'"),
        ("a --kind x --share y", "'--share'"),
        ("a --kind x --share nan", "'nan' is not a finite number"),
        ("a --kind x --share=-inf", "'-inf' is not a finite number"),
        ("a --kind x --folder d", "'--folder'"),
        ("a --kind x --no-force", "'--no-force'"),
    ],
)
def test_what_does_not_fit_is_named(line: str, says: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        COMMAND.main(line.split(), standalone_mode=False)
    assert says in caught.value.format_message()


def test_help_has_every_parameter_its_default_and_its_variable() -> None:
    text = CliRunner().invoke(COMMAND, ["--help"]).output
    for part in ("Do something.", "With more to say.", "SOURCE", "What is read.", "[OTHERS]...",
                 "[required]", "[default: 3]", "--quick / --no-quick", "-f, --force",
                 "[env var: SAMPLE_KEY]"):  # fmt: skip
        assert part in text, text
