"""The summary of docs/benchmarks.md: one row per kind of work, one column per kind of machine.

Read from the finished cells that benchmarks/side_by_side.py keeps in docs/side_by_side; nothing is
measured here.
"""

from __future__ import annotations

import json
from pathlib import Path

import harness
from rows import Outcome, Row, figure

# Kind of machine -> its column's title, in the order of the columns.
MACHINES = {
    "avx512bf16-family26": "Zen 5, AVX-512",
    "avx512bf16-family25": "Zen 4, AVX-512",
    "amx-family6": "Xeon, AMX",
    "avx2-family25": "Zen 4, AVX2 only",
}
# Key of a row -> what the summary calls it. The machines' pages have all rows.
WORK = {
    "decode-qwen3-0.6b-bf16": "decode, 1 stream, 0.6B bf16, vs llama.cpp",
    "decode-qwen3-0.6b-q8_0": "decode, 1 stream, 0.6B Q8_0, vs llama.cpp",
    "decode-qwen3-0.6b-q4_0": "decode, 1 stream, 0.6B Q4_0, vs llama.cpp",
    "decode-qwen3-0.6b-q4_k_m": "decode, 1 stream, 0.6B Q4_K_M, vs llama.cpp",
    "decode-llama-3.2-1b-q8_0": "decode, 1 stream, 1B Q8_0, vs llama.cpp",
    "decode-llama-3.2-1b-q4_k_m": "decode, 1 stream, 1B Q4_K_M, vs llama.cpp",
    "depth-4096": "decode at depth 4,096, Q8_0, vs llama.cpp",
    "depth-16384": "decode at depth 16,384, Q8_0, vs llama.cpp",
    "prefill-512-bf16": "prefill 512, bf16, vs llama.cpp",
    "prefill-512-q8_0": "prefill 512, Q8_0, vs llama.cpp",
    "prefill-512-q4_k_m": "prefill 512, Q4_K_M, vs llama.cpp",
    "prefill-2048-q8_0": "prefill 2,048, Q8_0, vs llama.cpp",
    "batch-16-q8_0": "16 sequences, Q8_0, vs llama.cpp",
    "batch-32-q4_k_m": "32 sequences, Q4_K_M, vs llama.cpp",
    "http-16-vllm-output": "HTTP, 16 streams: output vs vLLM int8",
    "http-16-llama_cpp-output": "HTTP, 16 streams: output vs llama-server",
    "http-16-vllm-ttft-p99": "HTTP, 16 streams: TTFT p99 vs vLLM int8",
    "http-16-vllm-itl-p99": "HTTP, 16 streams: ITL p99 vs vLLM int8",
    "http-1-vllm-tpot-p50": "HTTP, 1 stream: time per token vs vLLM int8",
    "shared-hit": "TTFT of a prefix cache hit, to a miss",
    "start-first": "process start to first token, first time",
    "start-second": "process start to first token, later",
    "memory": "memory beyond weights and KV cache",
    "overhead-outside": "wall time outside native steps, batch 16",
    "idle": "idle: share of one core",
}


def table(folder: Path = harness.SIDE_BY_SIDE) -> str:
    """The summary as Markdown; a missed target is bold, work that was not run is a dash."""
    machines = {}
    for kind, title in MACHINES.items():
        path = folder / f"{kind}.json"
        if path.exists():
            machines[kind, title] = _rows(path)
    titles = [f"[{title}](side_by_side/{kind}.md)" for kind, title in machines]
    lines = [f"| work | target | {' | '.join(titles)} |", "|---" * (2 + len(titles)) + "|"]
    for key, work in WORK.items():
        found = [rows.get(key) for rows in machines.values()]
        target = next((str(row.target) for row in found if row and row.target), "")
        lines.append(f"| {work} | {target} | {' | '.join(map(_cell, found))} |")
    lines.append(f"| **targets met (all rows)** | | {' | '.join(map(_met, machines.values()))} |")
    return "\n".join(lines)


def _rows(path: Path) -> dict[str, Row]:
    cells = json.loads(path.read_text()).values()
    return {row.key: row for cell in cells for row in Outcome.from_json(cell).rows}


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    text = figure(row.reached, row.target.unit if row.target else row.unit)
    return f"**{text}**" if row.met is False else text


def _met(rows: dict[str, Row]) -> str:
    verdicts = [row.met for row in rows.values() if row.met is not None]
    return f"{sum(verdicts)} of {len(verdicts)}"


# Rows of the chart, with the peer's name.
CHART = {
    "decode-qwen3-0.6b-q4_k_m": ("one stream, Q4_K_M", "llama.cpp"),
    "prefill-2048-q8_0": ("prompt of 2,048, Q8_0", "llama.cpp"),
    "batch-32-q4_k_m": ("32 sequences, Q4_K_M", "llama.cpp"),
    "http-16-llama_cpp-output": ("HTTP, 16 streams", "llama-server"),
    "http-16-vllm-output": ("HTTP, 16 streams", "vLLM int8"),
}
_WIDTH, _LEFT, _BAR = 720, 270, 26


def chart(kind: str, folder: Path = harness.SIDE_BY_SIDE) -> str:
    """Tokens per second as multiples of the peer's, as SVG; the peer is the line at 1."""
    rows = _rows(folder / f"{kind}.json")
    ratios = [(*CHART[key], rows[key].reached) for key in CHART if key in rows]
    unit = (_WIDTH - _LEFT - 60) / max(ratio for *_, ratio in ratios)
    height = 40 + (_BAR + 10) * len(ratios)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="14">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="22" font-weight="bold">Tokens per second relative to the peer, '
        f"0.6B shape, {MACHINES.get(kind, kind)} (dashed: the peer)</text>",
    ]
    for i, (work, peer, ratio) in enumerate(ratios):
        y = 36 + i * (_BAR + 10)
        parts.append(f'<text x="12" y="{y + 18}">{work} vs {peer}</text>')
        parts.append(
            f'<rect x="{_LEFT}" y="{y}" width="{ratio * unit:.0f}" height="{_BAR}" fill="#2a7f9e"/>'
        )
        parts.append(f'<text x="{_LEFT + ratio * unit + 8:.0f}" y="{y + 18}">{ratio:.2f}x</text>')
    line = _LEFT + unit
    parts.append(
        f'<path d="M{line:.0f} 30V{height - 4}" stroke="#c0392b" stroke-width="2" '
        'stroke-dasharray="4 3"/>'
    )
    return "\n".join([*parts, "</svg>\n"])


def write() -> None:
    """Write the table into docs/benchmarks.md, and the README's chart."""
    harness.write_section("summary", table())
    newest = next(iter(MACHINES))
    (harness.SIDE_BY_SIDE / "summary.svg").write_text(chart(newest))


if __name__ == "__main__":
    write()
