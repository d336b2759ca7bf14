"""Pictures of an explanation: a time line in text, and as SVG. Both are made of its document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

Document = dict[str, Any]

WIDTH = 48
"""Columns of the text's time line."""

_PARTS = " ▏▎▍▌▋▊▉█"

COLOURS = {
    "read": "#9aa5b1",
    "model": "#b08968",
    "prepare": "#7b8794",
    "quota": "#cbd2d9",
    "admission": "#cbd2d9",
    "dispatch": "#cbd2d9",
    "lost": "#ba2525",
    "adapter": "#a368fc",
    "grammar": "#8719e0",
    "queue": "#f0b429",
    "prefill": "#2186eb",
    "decode": "#27ab83",
    "preempted": "#de911d",
    "recovery": "#e12d39",
    "deliver": "#7b8794",
    "work": "#3ebd93",
}


class Bar(NamedTuple):
    """A bar of a lane; seconds."""

    start: float
    end: float


class Lane(NamedTuple):
    """A line of the picture: a phase with all its parts."""

    name: str
    bars: tuple[Bar, ...]

    @property
    def seconds(self) -> float:
        """Of all its bars."""
        return sum(bar.end - bar.start for bar in self.bars)


def lanes_of(document: Document) -> list[Lane]:
    """The phases, those of equal name in one lane, in order of their beginnings."""
    found: dict[str, list[Bar]] = {}
    for phase in document["phases"]:
        bar = Bar(phase["at"], phase["at"] + phase["seconds"])
        found.setdefault(phase["name"], []).append(bar)
    return [Lane(name, tuple(bars)) for name, bars in found.items()]


def shown_seconds(seconds: float) -> str:
    """A time as people read it: ``12.3 ms``, ``4.56 s``."""
    if seconds < 0.0001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def drawn(bars: Sequence[Bar], total: float, width: int = WIDTH) -> str:
    """Bars in text, by eighths of a column; one that is shorter is as long as an eighth."""
    eighths = [0] * (width * 8)
    for bar in bars:
        begin = min(int(bar.start / total * width * 8), width * 8 - 1) if total else 0
        end = max(begin + 1, round(bar.end / total * width * 8)) if total else 1
        for i in range(begin, min(end, width * 8)):
            eighths[i] = 1
    columns = [sum(eighths[i : i + 8]) for i in range(0, width * 8, 8)]
    return "".join(_PARTS[column] for column in columns).rstrip()


_LANE, _LEFT, _RIGHT, _PLOT = 22, 120, 90, 720
_TICKS = 5


def svg(document: Document) -> str:
    """The time line as an SVG picture: a lane per phase, marks for the prompt's chunks, slow gaps,
    preemptions and recoveries."""
    lanes, total = lanes_of(document), document["total_seconds"] or 1e-9
    head = 46
    height = head + _LANE * len(lanes) + 34
    width = _LEFT + _PLOT + _RIGHT
    title = f"{document['id']} · {document['model'] or 'no model'} · {_ending(document)}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
        f'<text x="12" y="37" fill="#52606d">{escape(_tokens(document))}</text>',
    ]
    bottom = head + _LANE * len(lanes)
    for i in range(_TICKS + 1):
        x = _LEFT + _PLOT * i / _TICKS
        shown = shown_seconds(total * i / _TICKS)
        parts.append(f'<path d="M{x:.1f} {head}V{bottom + 4}" stroke="#e4e7eb"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle" fill="#52606d">'
            f"{shown}</text>"
        )
    for row, lane in enumerate(lanes):
        y = head + _LANE * row
        seconds = shown_seconds(lane.seconds)
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{lane.name}</text>')
        for bar in lane.bars:
            x, wide = _LEFT + _PLOT * bar.start / total, _PLOT * (bar.end - bar.start) / total
            parts.append(
                f'<rect x="{x:.1f}" y="{y + 4}" width="{max(wide, 1):.1f}" height="{_LANE - 8}" '
                f'rx="2" fill="{COLOURS.get(lane.name, "#7b8794")}"><title>{lane.name} '
                f"{shown_seconds(bar.end - bar.start)}</title></rect>"
            )
        end = _LEFT + _PLOT * max(bar.end for bar in lane.bars) / total
        parts.append(f'<text x="{end + 6:.1f}" y="{y + 15}" fill="#52606d">{seconds}</text>')
    rows = {lane.name: row for row, lane in enumerate(lanes)}
    for lane_name, at, colour, text in _marks(document):
        if lane_name in rows:
            x, y = _LEFT + _PLOT * min(max(at, 0.0), total) / total, head + _LANE * rows[lane_name]
            parts.append(
                f'<path d="M{x:.1f} {y + 1}V{y + _LANE - 1}" stroke="{colour}" stroke-width="1.5">'
                f"<title>{escape(text)}</title></path>"
            )
    return "\n".join((*parts, "</svg>", ""))


def _marks(document: Document) -> list[tuple[str, float, str, str]]:
    """Lane, time, colour and text of each mark."""
    found: list[tuple[str, float, str, str]] = []
    for prompt in document["prompts"]:
        found += [
            ("recovery", recovery["at"], "#ba2525", f"engine: {recovery['cause']}")
            for recovery in prompt["recoveries"]
        ]
        for choice in prompt["choices"]:
            for chunk in choice["chunks"]:
                text = f"{chunk['tokens']} tokens from {chunk['start']}: {chunk['why']}"
                found.append(("prefill", chunk["at"], "#03449e", text))
            for gap in (choice["decode"] or {}).get("slowest", ()):
                text = f"{shown_seconds(gap['seconds'])} before the next token: {gap['cause']}"
                found.append(("decode", gap["at"], "#f7c948", text))
            found += [
                ("preempted", preemption["at"], "#8d2b0b", preemption["why"])
                for preemption in choice["preemptions"]
            ]
    return found


def text(document: Document) -> str:
    """The explanation as text: a time line, tables and reasons."""
    total = document["total_seconds"]
    lines = [
        f"{document['id']}  {document['model'] or '-'}  {_ending(document)}  "
        f"{shown_seconds(total)}",
        _tokens(document),
        "",
    ]
    for lane in lanes_of(document):
        seconds = shown_seconds(lane.seconds)
        share = lane.seconds / total if total else 0.0
        lines.append(f"  {lane.name:<10}{seconds:>9} {share:>4.0%} │{drawn(lane.bars, total)}")
    lines += ["", *(f"  {reason}" for reason in document["reasons"])]
    lines += _targets(document.get("targets") or [])
    lines += _decisions(document)
    for prompt in document["prompts"]:
        lines += _prompt(prompt, several=len(document["prompts"]) > 1)
    for call in document["calls"]:
        lines += ["", f"Call of {call['model']}"]
        for prompt in call["prompts"]:
            lines += _prompt(prompt, several=False)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _targets(targets: list[Document]) -> list[str]:
    """Of a gateway: where the request was given to."""
    if not targets:
        return []
    lines = ["", "Targets", "    given at  first part  ended at  target"]
    for one in targets:
        given, first, ended = (
            "-" if one[name] is None else shown_seconds(one[name])
            for name in ("at", "first_at", "ended_at")
        )
        why = f": {one['why']}" if one["why"] else ""
        lines.append(f"  {given:>10}  {first:>10}  {ended:>8}  {one['target']}{why}")
    return lines


def _ending(document: Document) -> str:
    if document["state"] == "running":
        return "running"
    status = document["status"] or "-"
    why = document["code"] or document["finish"]
    return f"{status} {document['outcome']}" + (f" ({why})" if why else "")


def _tokens(document: Document) -> str:
    prompt, cached = document["prompt_tokens"], document["cached_tokens"]
    parts = [
        f"{prompt} prompt tokens ({cached} cached)",
        f"{document['generated_tokens']} generated",
    ]
    if document["reasoning_tokens"]:
        parts.append(f"{document['reasoning_tokens']} of them thinking")
    if document["adapters"]:
        parts.append(f"adapter {' + '.join(document['adapters'])}")
    if document["version"]:
        parts.append(f"version {document['version']}")
    if document["cost"] is not None:
        parts.append(f"{document['cost']} {document['currency']}")
    if document["energy_joules"] is not None:
        how = " (estimated)" if document.get("energy_source") == "estimated" else ""
        parts.append(f"{document['energy_joules']:.1f} J{how}")
    return ", ".join(parts)


def _decisions(document: Document) -> list[str]:
    lines: list[str] = []
    admission = document["admission"]
    if admission is not None:
        known = "".join(
            f", {text} {admission[name]}"
            for name, text in (
                ("waiting", "waiting"), ("bound", "of at most"), ("ahead", "ahead of it"),
            )
            if name in admission
        )  # fmt: skip
        lines += [
            "",
            f"Admission: {admission['decision']}; {admission['prompt']} prompt and "
            f"{admission['expected']} expected tokens{known}",
        ]
    for view in document["quota"]:
        soft = " (soft)" if view["soft"] else ""
        lines.append(
            f"Limit of {view['level']} {view['subject'] or '-'}: {view['measure']}{soft} took "
            f"{view['reserved']} of {view['amount']}, {view['remaining']} remain"
        )
    return lines


def _prompt(prompt: Document, *, several: bool) -> list[str]:
    lines = ["", f"Prompt {prompt['prompt']}"] if several else [""]
    cache = prompt["cache"]
    if cache is not None:
        why = f": {cache['why']} (from token {cache['position']} on)" if cache["why"] else ""
        lines.append(f"Cached tokens: {cache['cached']}{why}")
    lines += [
        f"Recovery at {shown_seconds(recovery['at'])}: {recovery['cause']}"
        for recovery in prompt["recoveries"]
    ]
    for choice in prompt["choices"]:
        lines += _choice(choice, several=len(prompt["choices"]) > 1)
    return lines


def _choice(choice: Document, *, several: bool) -> list[str]:
    lines = [f"Choice {choice['choice']}"] if several else []
    if chunks := choice["chunks"]:
        rows = [
            (
                shown_seconds(max(0.0, chunk["at"])),
                str(chunk["start"]),
                str(chunk["tokens"]),
                "-" if chunk["streams"] is None else str(chunk["streams"]),
                chunk["why"],
            )
            for chunk in chunks
        ]
        lines += _table(("chunk at", "from", "tokens", "streams", "why no more"), rows)
        if choice["further_chunks"]:
            lines.append(f"  and {choice['further_chunks']} more chunks")
    for preemption in choice["preemptions"]:
        pause = preemption["seconds"]
        lines.append(
            f"Preempted at {shown_seconds(preemption['at'])}"
            + (f" for {shown_seconds(pause)}" if pause is not None else "")
            + f": {preemption['why']}"
        )
    grammar = choice["grammar"]
    if grammar is not None:
        known = ", compiled before" if grammar["compiled_before"] else ""
        lines.append(
            f"Grammar: {shown_seconds(grammar['compile_seconds'])} to compile{known}, masks "
            f"{shown_seconds(grammar['mask_seconds'])}"
        )
    speculation = choice["speculation"]
    if speculation is not None:
        by = ", ".join(
            f"{d['name']} {d['accepted']} of {d['drafted']}" for d in speculation["drafters"]
        )
        lines.append(
            f"Speculation: {speculation['accepted']} of {speculation['drafted']} drafts became "
            "tokens" + (f" ({by})" if by else "")
        )
    if (decode := choice["decode"]) is not None:
        lines.append(
            f"Gaps between {decode['gaps'] + 1} outputs: p50 {shown_seconds(decode['p50'])}, p90 "
            f"{shown_seconds(decode['p90'])}, p99 {shown_seconds(decode['p99'])}, longest "
            f"{shown_seconds(decode['longest'])}"
        )
        rows = [
            (
                shown_seconds(gap["at"]),
                shown_seconds(gap["seconds"]),
                str(gap["token"]),
                gap["cause"],
                _shared(gap),
            )
            for gap in decode["slowest"]
        ]
        lines += _table(("gap at", "length", "token", "cause", "in its last step"), rows)
    return lines


def _shared(gap: Document) -> str:
    if "step_rows" not in gap:
        return ""
    prompts = ", ".join(f"{p['tokens']} tokens of {p['id']}" for p in gap["prompts"])
    step = f"{gap['step_rows']} rows, {gap['step_tokens']} tokens"
    return f"{step}: {prompts}" if prompts else step


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    last = len(head) - 1
    return [
        "  "
        + "  ".join(
            f"{cell:<{width}}" if i >= 3 or i == last else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, *rows)
    ]
