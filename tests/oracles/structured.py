"""Structured output against `jsonschema`, at full length: `make structured`.

Every schema is sent to two engines, over brook and over random weights of its shape (which press
against every boundary), at temperature 1. A document that ended by itself must be valid; an
instance known to be valid must not be forbidden by the mask; what is refused names its keyword.
"""

from __future__ import annotations

import argparse
import collections
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from helpers.constrained import Brook  # noqa: E402
from helpers.constrained import schema as phase  # noqa: E402
from oracles.schemas import Case, composed, drawn, packages, served, suite  # noqa: E402

from tidemill.base.errors import TidemillError  # noqa: E402
from tidemill.contract.program import Grammar  # noqa: E402
from tidemill.grammar.compiler import Compiler  # noqa: E402
from tidemill.grammar.vocabulary import Vocabulary  # noqa: E402
from tidemill.loading import bundled_models, open_model  # noqa: E402

BATCH = 48


@dataclass
class Outcome:
    """What came of the cases.

    Attributes:
        accepted, refused: schemas by where they are from.
        keywords: refusals by the last part of their param.
        stopped, cut: documents that ended by themselves, or by max_tokens, by model.
        invalid: (source, schema, document) that ended by itself and does not validate.
        forbidden: (source, schema, instance) that is valid and that the mask forbids.
        errors: (source, schema, message): an accepted schema whose request failed.
    """

    accepted: collections.Counter[str] = field(default_factory=collections.Counter)
    refused: collections.Counter[str] = field(default_factory=collections.Counter)
    keywords: collections.Counter[str] = field(default_factory=collections.Counter)
    stopped: collections.Counter[str] = field(default_factory=collections.Counter)
    cut: collections.Counter[str] = field(default_factory=collections.Counter)
    instances: int = 0
    invalid: list[tuple[str, str, str]] = field(default_factory=list)
    forbidden: list[tuple[str, str, str]] = field(default_factory=list)
    errors: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def bad(self) -> int:
        return len(self.invalid) + len(self.forbidden) + len(self.errors)


def random_brook(folder: Path) -> Path:
    """Brook's files with random weights of the same spread."""
    source = bundled_models()["brook"]
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
                 "chat_template.jinja"):  # fmt: skip
        if (source / name).exists():
            shutil.copy(source / name, folder / name)
    rng = np.random.default_rng(5)
    made = {}
    with safe_open(source / "model.safetensors", "numpy") as file:
        for name in file.keys():  # noqa: SIM118
            shape = file.get_slice(name).get_shape()
            norm = len(shape) == 1
            values = np.ones(shape) if norm else rng.standard_normal(shape) * 0.06
            made[name] = values.astype(np.float32)
    save_file(made, folder / "model.safetensors")
    return folder


def compiler() -> Compiler:
    """Over brook's vocabulary."""
    files = open_model(bundled_models()["brook"])
    return Compiler(Vocabulary(files.tokenizer, files.spec.vocab_size, files.eos_token_ids))


DRAFTS = {
    "draft4": jsonschema.Draft4Validator,
    "draft6": jsonschema.Draft6Validator,
    "draft7": jsonschema.Draft7Validator,
    "draft2019-09": jsonschema.Draft201909Validator,
}


def validator(case: Case) -> Any:
    """An independent judge of a schema's draft, formats included."""
    default = DRAFTS.get(case.source, jsonschema.Draft202012Validator)
    kind = jsonschema.validators.validator_for(case.schema, default)
    return kind(case.schema, format_checker=kind.FORMAT_CHECKER)


def spelled(value: Any) -> bool:
    """The instance's canonical spelling is its only one: floats that are whole numbers have two."""
    if isinstance(value, float):
        return not value.is_integer() and "e" not in repr(value)
    if isinstance(value, dict):
        return all(map(spelled, value.values()))
    return not isinstance(value, list) or all(map(spelled, value))


def accepted_cases(cases: Iterable[Case], compiled: Compiler, outcome: Outcome) -> Iterator[Case]:
    """Those whose schema is honoured; valid instances are forced through their masks."""
    for case in cases:
        source = json.dumps(case.schema)
        try:
            matcher = compiled.matcher(Grammar("json_schema", source, "schema"))
        except TidemillError as error:
            assert error.param and error.param.startswith("schema"), error
            outcome.refused[case.source] += 1
            outcome.keywords[error.param.rsplit(".", 1)[-1].split("[")[0]] += 1
            continue
        outcome.accepted[case.source] += 1
        judge = validator(case)
        for instance in case.valid:
            if not spelled(instance) or not judge.is_valid(instance):
                continue
            text = json.dumps(instance, ensure_ascii=False)
            outcome.instances += 1
            ids = compiled.vocabulary(text.encode())
            mine = matcher.deep_copy()
            if mine.try_consume_tokens(ids) != len(ids) or not mine.is_accepting():
                outcome.forbidden.append((case.source, source, text))
        yield case


def press(cases: list[Case], engine: Brook, name: str, outcome: Outcome, max_tokens: int) -> None:
    """Let a model write under each schema."""
    begun = time.monotonic()
    for at in range(0, len(cases), BATCH):
        batch = cases[at : at + BATCH]
        requests = [
            engine.request(
                f"{name}-{at + i}",
                "Give me the data as JSON.",
                (phase(json.dumps(case.schema)),),
                temperature=1.0,
                seed=at + i,
                max_tokens=max_tokens,
            )
            for i, case in enumerate(batch)
        ]
        for case, (answer,) in zip(batch, engine.run(requests, 600), strict=True):
            source = json.dumps(case.schema)
            if answer.finish == "length":
                outcome.cut[name] += 1
            elif answer.finish != "stop":
                outcome.errors.append((case.source, source, str(answer.error)))
            else:
                outcome.stopped[name] += 1
                text = engine.text(answer)
                try:
                    validator(case).validate(json.loads(text))
                except (ValueError, jsonschema.ValidationError) as error:
                    outcome.invalid.append((case.source, source, f"{text}: {str(error)[:200]}"))
        if sys.stderr.isatty() or at % (BATCH * 8) == 0:
            print(f"{name}: {at + len(batch)}/{len(cases)} in {time.monotonic() - begun:.0f} s",
                  file=sys.stderr)  # fmt: skip


def run(cases: Iterable[Case], *, max_tokens: int = 160) -> Outcome:
    """Everything over some cases."""
    outcome = Outcome()
    accepted = list(accepted_cases(cases, compiler(), outcome))
    with tempfile.TemporaryDirectory() as folder:
        for name, path in (("brook", None), ("random weights", random_brook(Path(folder)))):
            engine = Brook(path=path, threads=2, max_num_seqs=BATCH)
            try:
                press(accepted, engine, name, outcome, max_tokens)
            finally:
                engine.close()
    return outcome


def report(outcome: Outcome) -> str:
    """The tables of docs/structured.md."""
    lines = ["| schemas from | accepted | refused |", "|---|---|---|"]
    sources = sorted(set(outcome.accepted) | set(outcome.refused))
    lines += [f"| {s} | {outcome.accepted[s]} | {outcome.refused[s]} |" for s in sources]
    total = sum(outcome.accepted.values()), sum(outcome.refused.values())
    lines += [f"| all | {total[0]} | {total[1]} |", ""]
    lines += ["| model | documents that ended by themselves | cut by max_tokens |", "|---|---|---|"]
    for name in outcome.stopped:
        lines.append(f"| {name} | {outcome.stopped[name]} | {outcome.cut[name]} |")
    lines += [
        "",
        f"Documents that ended by themselves and are not valid: {len(outcome.invalid)}. Valid "
        f"instances forced through the masks: {outcome.instances}, forbidden: "
        f"{len(outcome.forbidden)}. Requests that failed: {len(outcome.errors)}.",
        "",
        "Refused, by keyword: "
        + ", ".join(f"{k} {n}" for k, n in outcome.keywords.most_common())
        + ".",
    ]
    return "\n".join(lines)


def fetch_suite(folder: Path) -> Path:
    """The jsonschema source distribution, which carries the test suite."""
    found = sorted(folder.glob("jsonschema-*.tar.gz"))
    if not found:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:",
             "-d", str(folder), "jsonschema"], check=True)  # fmt: skip
        found = sorted(folder.glob("jsonschema-*.tar.gz"))
    return found[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drawn", type=int, default=1200, help="schemas to draw")
    parser.add_argument("--composed", type=int, default=2400, help="schemas to compose")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--report", type=Path, default=ROOT / "docs" / "structured.md")
    options = parser.parse_args()
    archive = fetch_suite(ROOT / ".work" / "structured")
    cases = [*suite(archive), *served(), *packages(), *drawn(options.drawn)]
    cases += composed(options.composed)
    print(f"{len(cases)} schemas", file=sys.stderr)
    outcome = run(cases, max_tokens=options.max_tokens)
    text = report(outcome)
    print(text)
    for kind in ("invalid", "forbidden", "errors"):
        for row in getattr(outcome, kind)[:15]:
            print(f"{kind}: {row}")
    if options.report.exists() and not outcome.bad:
        begin, end = "<!-- structured: begin -->", "<!-- structured: end -->"
        old = options.report.read_text()
        head, rest = old.split(begin)
        options.report.write_text(f"{head}{begin}\n{text}\n{end}{rest.split(end)[1]}")
    return 1 if outcome.bad else 0


if __name__ == "__main__":
    sys.exit(main())
