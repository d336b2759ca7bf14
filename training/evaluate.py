"""Evaluation on held-out cases: ``python -m training.evaluate --transformers`` or ``--base-url``.

Writes ``training/record/evaluation.json`` and ``evaluation.md``; a run through a server is kept
beside one through transformers, and compared with transformers token for token.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from training.answerers import Answerer, Server, Transformers
from training.companions.measure import draft_agreement, medusa_accuracy, soft_share
from training.data.voices import VOICES
from training.export import ASSETS
from training.judge import KINDS, Answer, Case, cases

RECORD = Path(__file__).with_name("record")


def judge(answerer: Answerer, name: str, count: int) -> tuple[dict[str, Any], list[Case], list]:
    """Answer and judge one kind; shares of right answers, overall and for unseen wordings."""
    found = cases(name, count)
    answers = answerer([case.example for case in found])
    right = [KINDS[name].right(c.example, a) for c, a in zip(found, answers, strict=True)]
    unseen = [ok for ok, case in zip(right, found, strict=True) if case.unseen_wording]
    row: dict[str, Any] = {"cases": count, "right": sum(right) / count}
    if unseen:
        row["unseen_wordings"] = {"cases": len(unseen), "right": sum(unseen) / len(unseen)}
    if name == "code":
        for operation in ("rename", "constant", "docstring", "copy"):
            picked = [
                ok for ok, c in zip(right, found, strict=True)
                if c.example.expect["operation"] == operation
            ]  # fmt: skip
            row[operation] = {"cases": len(picked), "right": sum(picked) / max(1, len(picked))}
    return row, found, answers


def show_wrong(found: list[Case], answers: list[Answer], name: str, limit: int) -> None:
    for case, answer in zip(found, answers, strict=True):
        if limit and not KINDS[name].right(case.example, answer):
            limit -= 1
            question = case.example.prompt[-1]["content"]
            print(f"  ? {question!r}\n  - {case.example.expect}\n  + {answer.raw!r}")


def judge_voices(base: Answerer, adapters: dict[str, Answerer], count: int) -> dict[str, Any]:
    """The share of answers in each voice, with the adapter and without."""
    examples = [case.example for case in cases("voice", count)]
    plain = [a.content for a in base(examples)]
    rows = {}
    for voice, answerer in adapters.items():
        heard = VOICES[voice].heard
        texts = [a.content for a in answerer(examples)]
        right = [
            t == VOICES[voice].speak(e.kind, e.expect["text"])
            for t, e in zip(texts, examples, strict=True)
        ]
        rows[voice] = {
            "cases": count, "effect": sum(map(heard, texts)) / count,
            "effect_in_base": sum(map(heard, plain)) / count, "exact": sum(right) / count,
        }  # fmt: skip
    return rows


def run(answerer: Answerer, options: argparse.Namespace, reference: Transformers | None) -> dict:
    """All kinds; with a reference, also whether each answer is its greedy answer."""
    result: dict[str, Any] = {}
    agreed = asked = 0
    for name in options.kinds or KINDS:
        row, found, answers = judge(answerer, name, options.count)
        if reference:
            same = [reference.agrees(c.example, a) for c, a in zip(found, answers, strict=True)]
            row["equal_to_transformers"] = sum(same) / len(same)
            agreed, asked = agreed + sum(same), asked + len(same)
            for c, a, ok in zip(found, answers, same, strict=True):
                if not ok and options.show:
                    print(f"  differs: {c.example.prompt[-1]['content']!r} -> {a.raw!r}")
        result[name] = row
        print(f"{name:<12} {row['right']:.3f}  {KINDS[name].title}", flush=True)
        show_wrong(found, answers, name, options.show)
    if reference:
        result["greedy_equal"] = {"cases": asked, "equal": agreed}
        print(f"equal to transformers in float32: {agreed} of {asked}")
    return result


def companions(folder: Path, count: int) -> dict[str, Any]:
    """Draft agreement, Medusa accuracy, adapters and soft prompt, through torch."""
    result: dict[str, Any] = {}
    if (folder / "draft").exists():
        result["draft"] = draft_agreement(folder, count)
    if (folder / "medusa").exists():
        result["medusa"] = medusa_accuracy(folder, count)
    paths = {v: folder / f"lora-{v}" for v in ("verse", "ripple")}
    adapters = {v: Transformers(folder, p) for v, p in paths.items() if p.exists()}
    if adapters:
        result["lora"] = judge_voices(Transformers(folder), adapters, count)  # type: ignore[arg-type]
    if (folder / "soft-ahoy").exists():
        result["soft"] = soft_share(folder, count)
    print(json.dumps(result, indent=1))
    return result


def table(results: dict[str, dict[str, Any]]) -> str:
    """The Markdown report of all runs that the JSON file holds."""
    runs = [name for name in ("server", "transformers") if name in results]
    lines = ["# Brook: evaluation on held-out cases", ""]
    lines += ["Greedy; entities, names, larger numbers and pairs of summands never seen in"]
    lines += ["training; about one wording in six unseen too (its own column of the last run).", ""]
    lines += ["| what | cases | target | " + " | ".join(runs) + " | unseen wordings |"]
    lines += ["| --- " * (len(runs) + 4) + "|"]
    for name, kind in KINDS.items():
        rows = [results[r].get(name) for r in runs]
        if not any(rows):
            continue
        last = next(row for row in rows if row)
        shares = [f"{row['right']:.1%}" if row else "" for row in rows]
        unseen = last.get("unseen_wordings")
        more = f"{unseen['right']:.1%} of {unseen['cases']}" if unseen else ""
        target = f"{kind.target:.0%}" if kind.target else ""
        lines.append(f"| {kind.title} | {last['cases']} | {target} | " + " | ".join(shares)
                     + f" | {more} |")  # fmt: skip
    lines.append("")
    equal = results.get("server", {}).get("greedy_equal")
    if equal:
        lines += [f"Tidemill's greedy answers in float32 equal transformers' token for token in "
                  f"{equal['equal']} of {equal['cases']} cases.", ""]  # fmt: skip
    lines += companion_lines(results.get("companions", {}))
    return "\n".join(lines) + "\n"


def companion_lines(found: dict[str, Any]) -> list[str]:
    lines = ["## Companions", ""] if found else []
    if "draft" in found:
        lines += [f"- Draft model, {found['draft']['parameters']} parameters: its greedy token is"
                  f" brook's in {found['draft']['agreement']:.1%} of"
                  f" {found['draft']['tokens']} answer tokens (target 70 %)."]  # fmt: skip
    if "medusa" in found:
        shares = ", ".join(f"{x:.1%}" for x in found["medusa"]["heads"])
        lines += [f"- Medusa heads, share of brook's greedy tokens 2 to 5 ahead: {shares}."]
    for voice, row in found.get("lora", {}).items():
        lines += [f"- LoRA `{voice}`: effect in {row['effect']:.1%} of {row['cases']} answers, in"
                  f" {row['effect_in_base']:.1%} of the base's; whole answer exact in"
                  f" {row['exact']:.1%}."]  # fmt: skip
    if "soft" in found:
        lines += [f"- Soft prompt `ahoy`: effect in {found['soft']['effect']:.1%} of"
                  f" {found['soft']['cases']} answers."]  # fmt: skip
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transformers", action="store_true", help="answer with transformers")
    parser.add_argument("--companions", action="store_true", help="evaluate the companions")
    parser.add_argument("--base-url", help="answer through a server, e.g. http://host:8000/v1")
    parser.add_argument("--raw", action="store_true", help="use the completions endpoint")
    parser.add_argument("--model", help="the model's name at the server")
    parser.add_argument("--folder", type=Path, default=ASSETS)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS))
    parser.add_argument("--show", type=int, default=0, help="print so many wrong answers a kind")
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()
    torch.set_num_threads(min(4, torch.get_num_threads()))
    options.record.mkdir(parents=True, exist_ok=True)
    file = options.record / "evaluation.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    if options.transformers:
        results["transformers"] = run(Transformers(options.folder), options, None)
    if options.companions:
        results["companions"] = companions(options.folder, options.count)
    if options.base_url:
        server = Server(options.base_url, options.model, raw=options.raw)
        results["server"] = run(server, options, Transformers(options.folder))
    if not options.kinds:
        file.write_text(json.dumps(results, indent=1) + "\n")
        (options.record / "evaluation.md").write_text(table(results))


if __name__ == "__main__":
    main()
