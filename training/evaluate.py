"""Evaluation on held-out cases: ``python -m training.evaluate --serve --companions``.

``--serve`` starts Tidemill and asks it through the openai client; ``--base-url`` asks a server that
runs; both compare each answer with transformers token for token. Writes
``training/record/evaluation.json`` and ``evaluation.md``.
"""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from training.answerers import Answerer, Server, Transformers
from training.companions import measure
from training.data.tools import NO_TOOL
from training.export import ASSETS
from training.judge import KINDS, Answer, Case, cases
from training.serving import served

RECORD = Path(__file__).with_name("record")


def score(name: str, found: list[Case], answers: list[Answer]) -> dict[str, Any]:
    """Shares of right answers of one kind: overall, for unseen wordings, by code operation."""
    right = [KINDS[name].right(c.example, a) for c, a in zip(found, answers, strict=True)]

    def part(chosen: list[bool]) -> dict[str, Any]:
        return {"cases": len(chosen), "right": sum(chosen) / max(1, len(chosen))}

    row = part(right)
    unseen = [ok for ok, case in zip(right, found, strict=True) if case.unseen_wording]
    if unseen:
        row["unseen_wordings"] = part(unseen)
    if name == "code":
        done = [case.example.expect["operation"] for case in found]
        for operation in sorted(set(done)):
            row[operation] = part([ok for ok, o in zip(right, done, strict=True) if o == operation])
    if name == "no_call":
        fits = [case.example.expect["text"] != NO_TOOL for case in found]
        row["talk_or_knowledge"] = part([ok for ok, f in zip(right, fits, strict=True) if f])
        row["no_tool_fits"] = part([ok for ok, f in zip(right, fits, strict=True) if not f])
    return row


def show_wrong(found: list[Case], answers: list[Answer], name: str, limit: int) -> None:
    for case, answer in zip(found, answers, strict=True):
        if limit and not KINDS[name].right(case.example, answer):
            limit -= 1
            question = case.example.prompt[-1]["content"]
            print(f"  ? {question!r}\n  - {case.example.expect}\n  + {answer.raw!r}")


def run(answerer: Answerer, options: argparse.Namespace) -> dict[str, Any]:
    """All kinds through one answerer."""
    result: dict[str, Any] = {}
    for name in options.kinds or KINDS:
        found = cases(name, options.count)
        answers = answerer([case.example for case in found])
        result[name] = score(name, found, answers)
        print(f"{name:<12} {result[name]['right']:.3f}  {KINDS[name].title}", flush=True)
        show_wrong(found, answers, name, options.show)
    return result


def run_both(
    server: Server, reference: Transformers, options: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, Any]]:
    """All kinds through the server and through transformers, compared token for token.

    Where transformers' argmax is the server's token at every place, its own greedy answer is the
    server's; only elsewhere does it have to generate. Answers are judged as the server parsed them;
    where the parts do not add up to the text again (a malformed call, reasoning that never ends),
    the text is asked of the completions endpoint before it is compared.
    """
    ours: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    agreed = asked = 0
    for name in options.kinds or KINDS:
        found = cases(name, options.count)
        answers = server([case.example for case in found])
        same = [reference.agrees(c.example, a) for c, a in zip(found, answers, strict=True)]
        for i, equal in enumerate(same):
            if not equal:
                answers[i].raw = server.completed(found[i].example).raw
                same[i] = reference.agrees(found[i].example, answers[i])
        other = list(answers)
        for i, equal in enumerate(same):
            if not equal:
                other[i] = reference.generate([found[i].example])[0]
                # Another spelling of the same text in tokens, or a cut: of an answer that does not
                # end, transformers writes less than the server.
                said = answers[i].raw.strip()
                cut = said[: len(other[i].raw.strip())] if other[i].finish == "length" else said
                same[i] = other[i].raw.strip() == cut
                if not same[i]:
                    print(f"  server:       {answers[i].raw!r}\n  transformers: {other[i].raw!r}")
        ours[name], theirs[name] = score(name, found, answers), score(name, found, other)
        ours[name]["equal_to_transformers"] = sum(same) / len(same)
        agreed, asked = agreed + sum(same), asked + len(same)
        print(f"{name:<12} {ours[name]['right']:.3f} {theirs[name]['right']:.3f} equal "
              f"{sum(same)}/{len(same)}  {KINDS[name].title}", flush=True)  # fmt: skip
        show_wrong(found, answers, name, options.show)
    ours["greedy_equal"] = {"cases": asked, "equal": agreed}
    print(f"equal to transformers in float32: {agreed} of {asked}")
    return ours, theirs


def companions(folder: Path, count: int) -> dict[str, Any]:
    """Draft agreement and adapters through Tidemill; Medusa heads and soft prompt in torch."""
    result: dict[str, Any] = {}
    voices = [v for v in ("verse", "ripple") if (folder / f"lora-{v}").exists()]
    with served(folder) as url:
        rows = measure.answered(folder, url, count)
        plain = {voice: measure.lora_effect(voice, url, count) for voice in voices}
    if (folder / "draft").exists():
        with served(folder / "draft") as url:
            result["draft"] = measure.draft_agreement(folder, url, rows)
    if (folder / "medusa").exists():
        result["medusa"] = measure.medusa_accuracy(folder, rows)
    for voice in voices:
        with measure.merged(folder, folder / f"lora-{voice}") as both, served(both) as url:
            row = measure.lora_effect(voice, url, count)
        row["effect_in_base"] = plain[voice]["effect"]
        result.setdefault("lora", {})[voice] = row
    if (folder / "soft-ahoy").exists():
        result["soft"] = measure.soft_share(folder, count)
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
    parts = next((results[r]["no_call"] for r in runs if "no_call" in results[r]), {})
    if "no_tool_fits" in parts:
        talk, fits = parts["talk_or_knowledge"], parts["no_tool_fits"]
        lines += [f"Without a call, as is right: {talk['right']:.1%} of {talk['cases']} that are"
                  f" talk or questions; {fits['right']:.1%} of {fits['cases']} that ask for what"
                  " none of the offered tools does.", ""]  # fmt: skip
    equal = results.get("server", {}).get("greedy_equal")
    if equal:
        lines += [f"Tidemill's greedy answers in float32 equal transformers' token for token in "
                  f"{equal['equal']} of {equal['cases']} cases.", ""]  # fmt: skip
    refused = results.get("server", {}).get("through_completions")
    if refused:
        lines += [f"{refused} cases went through the completions endpoint, rendered and parsed by"
                  " the evaluation, because the server's chat endpoint refused what they ask for"
                  " (tool calling).", ""]  # fmt: skip
    lines += companion_lines(results.get("companions", {}))
    return "\n".join(lines) + "\n"


def companion_lines(found: dict[str, Any]) -> list[str]:
    lines = ["## Companions", ""] if found else []
    if found:
        lines += ["The draft model's agreement and the adapters' effects (merged into brook's"
                  " weights) are asked of a Tidemill server; Medusa heads and soft prompt run in"
                  " torch.", ""]  # fmt: skip
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
    parser.add_argument("--serve", action="store_true", help="start Tidemill and ask it")
    parser.add_argument("--base-url", help="answer through a server, e.g. http://host:8000/v1")
    parser.add_argument("--raw", action="store_true", help="use the completions endpoint")
    parser.add_argument("--model", help="the model's name at the server")
    parser.add_argument("--folder", type=Path, default=ASSETS)
    parser.add_argument("--count", type=int, default=200)
    # Beside other work, threads that wait for each other are slower than one.
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS))
    parser.add_argument("--show", type=int, default=0, help="print so many wrong answers a kind")
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.record.mkdir(parents=True, exist_ok=True)
    file = options.record / "evaluation.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    if options.transformers:
        results["transformers"] = run(Transformers(options.folder), options)
    if options.companions:
        results["companions"] = companions(options.folder, options.count)
    if options.serve or options.base_url:
        place = nullcontext(options.base_url) if options.base_url else served(options.folder)
        with place as url:
            server = Server(url, options.model, raw=options.raw)
            both = run_both(server, Transformers(options.folder), options)
        results["server"], results["transformers"] = both
        results["server"]["through_completions"] = server.refused
    if not options.kinds:
        file.write_text(json.dumps(results, indent=1) + "\n")
        (options.record / "evaluation.md").write_text(table(results))


if __name__ == "__main__":
    main()
