"""Runs every family's cases and writes the table of docs/families.md (`make families`)."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))

from helpers.family_cases import CASES  # noqa: E402
from oracles.families import EXECUTORS, GREEDY_TOKENS, TOLERANCE, Outcome, compare  # noqa: E402

DOCUMENT = HERE.parents[2] / "docs" / "families.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"


def main() -> int:
    """Run, print, write; 1 when a case differs from transformers."""
    import transformers

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="parts of families' names; other rows stay")
    only = parser.parse_args().only
    kept = _written() if only else {}
    rows: list[str] = []
    good = True
    for case in CASES:
        name = f"| {case.family} | {case.about} |"
        if only and not any(part.lower() in case.family.lower() for part in only):
            rows += [kept[name]] if name in kept else []
            continue
        with tempfile.TemporaryDirectory() as folder:
            outcomes = compare(case, Path(folder) / "model")
        good &= all(outcome.good for outcome in outcomes.values())
        cells = [_cell(outcomes[name]) for name in EXECUTORS]
        rows.append(f"{name} {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    _write(rows, transformers.__version__)
    return 0 if good else 1


def _written() -> dict[str, str]:
    """Family and shape -> row of the document as it is."""
    table = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    return {"|".join(row.split("|")[:3]) + "|": row for row in rows}


def _cell(outcome: Outcome) -> str:
    mark = "" if outcome.good else " **differs**"
    return f"{outcome.error:.0e}, {outcome.tokens}/{outcome.asked}{mark}"


def _write(rows: list[str], version: str) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    head = [
        f"Compared with transformers {version}: the largest difference of a logit over the logits' "
        f"standard deviation (at most {TOLERANCE:g} passes), and how many of 3 * {GREEDY_TOKENS} "
        "greedy tokens are the same.",
        "",
        f"| family | shape | {' | '.join(EXECUTORS)} |",
        "|---" * (2 + len(EXECUTORS)) + "|",
    ]
    table = "\n".join([BEGIN, *head, *rows, END])
    DOCUMENT.write_text(before + table + after, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
