"""Is this commit slower than the last release? Interleaved runs of both, and instruction counts.

Both versions run in environments of their own with the same dependencies. In each round each of
them is started and loaded, alternately the first one; a metric is compared within rounds, so that
a machine that others use disturbs both. A regression is *shown* where the whole 95 % interval of
the mean ratio lies beyond the limit (3 %); then the exit code is 1. Instructions (callgrind, where
valgrind is installed) are counted once for each: they do not vary with the machine's load.

    .venv/bin/python benchmarks/gate.py [--base REF] [--rounds 8] [--model PATH] [--json FILE]

REF is the newest tag v*, or where there is none, the parent of this commit. Its native core is
compiled only where the C++ sources differ.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness import ROOT, WORK, machine_line, serving

from tidemill.backends.native import _core
from tidemill.base import _texts
from tidemill.bench.load import run_bench
from tidemill.bench.options import BenchOptions
from tidemill.bench.stats import mean_interval

LIMIT = 0.03
GATE = WORK / "gate"
CORES = {"backends/native": _core.__file__, "base": _texts.__file__}

# Metric -> whether more is better.
METRICS = {
    "start, s": False,
    "one stream, tokens/s": True,
    "16 streams, tokens/s": True,
    "first token of 1,500, ms": False,
}

# What a token costs a process without HTTP: the difference of two runs, without start and end.
_COUNTED_TOKENS = 24
_ANSWER = """
import sys
from tidemill import LLM, SamplingParams
llm = LLM(max_num_seqs=1, threads=1, isa="avx2", max_model_len=512, packed_cache="off")
llm.generate(["Tell me a story."], SamplingParams(max_tokens=int(sys.argv[1]), ignore_eos=True))
llm.close()
"""


@dataclass(frozen=True, slots=True)
class Version:
    """A version that can run.

    Attributes:
        name: of the commit, or what it is.
        python: of its environment.
    """

    name: str
    python: Path


@dataclass(frozen=True, slots=True)
class Verdict:
    """A metric of both versions.

    Attributes:
        base, new: means.
        slower: new against base as a share, above 0 where it is worse; its 95 % interval.
        regression: whether it is shown to be worse by more than the limit.
    """

    metric: str
    base: float
    new: float
    slower: tuple[float, float]
    regression: bool


def judged(
    metric: str, pairs: Sequence[tuple[float, float]], *, more_is_better: bool, limit: float = LIMIT
) -> Verdict:
    """Compare a metric from its value in each round, (base, new)."""
    sign = -1.0 if more_is_better else 1.0
    logs = [sign * math.log(new / base) for base, new in pairs]
    low, high = mean_interval(logs) if len(logs) > 1 else (logs[0], logs[0])
    means = [sum(side) / len(pairs) for side in zip(*pairs, strict=True)]
    return Verdict(
        metric, means[0], means[1], (math.expm1(low), math.expm1(high)), low > math.log1p(limit)
    )


def prepared(ref: str | None) -> Version:
    """The environment of a commit; None: of the working tree."""
    commit = "working tree" if ref is None else _git("rev-parse", "--short=12", ref)
    folder = GATE / commit.replace(" ", "-")
    package = folder / "src" / "tidemill"
    if ref is None or not (package / "backends/native" / Path(_core.__file__).name).exists():
        shutil.rmtree(folder, ignore_errors=True)
        package.parent.mkdir(parents=True)
        if ref is None:
            ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.so.new")
            shutil.copytree(ROOT / "src" / "tidemill", package, ignore=ignored)
        else:
            _unpack(ref, folder)
        for place, file in _cores(ref, folder).items():
            shutil.copy(file, package / place)
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        [site] = (folder / "venv" / "lib").glob("python*/site-packages")
        # Its own source, and our dependencies: a path in a .pth file is not searched for others.
        ours = [entry for entry in sys.path if entry.endswith("site-packages")]
        (site / "gate.pth").write_text("\n".join((str(package.parent), *ours)) + "\n")
    subprocess.run([python, "-m", "compileall", "-q", package], check=True)
    found = subprocess.run(
        [python, "-c", "import tidemill; print(tidemill.__file__)"],
        check=True, capture_output=True, text=True, cwd=folder,
    ).stdout.strip()  # fmt: skip
    assert Path(found).parent == package, f"{found} is imported instead of {package}"
    return Version(commit, python)


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout.strip()


def _unpack(ref: str, folder: Path) -> None:
    archive = subprocess.run(["git", "archive", ref], check=True, capture_output=True, cwd=ROOT)
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)


def _cores(ref: str | None, folder: Path) -> dict[str, str]:
    """The native modules: those of this installation, or compiled where the sources differ."""
    if ref is None or not _git("diff", "--name-only", ref, "--", "csrc", "CMakeLists.txt"):
        return CORES
    print(f"compiling the native core of {ref} (minutes) ...", file=sys.stderr)
    build = folder / "build"
    options = ["-DCMAKE_BUILD_TYPE=Release", f"-DPython_EXECUTABLE={sys.executable}"]
    log = (folder / "build.log").open("w")
    for command in (
        ["cmake", "-S", str(folder), "-B", str(build), *options],
        ["cmake", "--build", str(build), "-j", str(os.cpu_count())],
    ):
        if subprocess.run(command, stdout=log, stderr=log).returncode:
            raise SystemExit(f"compiling failed; see {log.name} (needs pip install nanobind cmake)")
    names = {place: Path(file).name for place, file in CORES.items()}
    return {place: str(build / name) for place, name in names.items()}


def last_release() -> str:
    """The newest tag of a release, or the parent of this commit."""
    tags = _git("tag", "--list", "v*", "--sort=-v:refname", "--merged", "HEAD").splitlines()
    return tags[0] if tags else "HEAD~1"


def measured(version: Version, model: str) -> dict[str, float]:
    """Every metric once, of a server of its own."""
    command = [str(version.python), "-m", "tidemill", "serve", model, "--port", "{port}"]
    options = ["--log-level", "error", "--database", "none"]
    with serving([*command, *options], log=GATE / "servers.log") as server:
        found = {"start, s": server.ready}
        for name, streams, requests, given, made in (
            ("one stream, tokens/s", 1, 8, 100, 96),
            ("16 streams, tokens/s", 16, 48, 100, 96),
            ("first token of 1,500, ms", 1, 8, 1500, 2),
        ):
            report = run_bench(
                BenchOptions(
                    server.url,
                    concurrency=(streams,),
                    requests=requests,
                    input_tokens=given,
                    output_tokens=made,
                )
            )
            [point] = report.points
            assert point.completed == requests, point.error_details
            first = point.latencies["ttft"]["p50"]
            found[name] = first if name.startswith("first") else point.output_throughput
        return found


def instructions(version: Version) -> dict[str, int]:
    """Instructions of a start of the command line, and of a token."""
    counted = {
        "instructions of `tidemill --version`": _counted(version, "-m", "tidemill", "--version"),
    }
    short, long = (
        _counted(version, "-c", _ANSWER, str(count)) for count in (8, 8 + _COUNTED_TOKENS)
    )
    counted["instructions of a token"] = (long - short) // _COUNTED_TOKENS
    return counted


def _counted(version: Version, *arguments: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                *("valgrind", "--trace-children=yes", "--log-file=/dev/null"),
                *("--tool=callgrind", f"--callgrind-out-file={folder}/out.%p"),
                *(str(version.python), *arguments),
            ],
            env={**os.environ, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"valgrind failed: {done.stderr[-2000:]}")
        files = Path(folder).glob("out.*")
        totals = [re.search(r"^(?:totals|summary): (\d+)", f.read_text(), re.M) for f in files]
        return sum(int(total[1]) for total in totals if total)


def table(verdicts: Sequence[Verdict], versions: Sequence[Version]) -> str:
    """A table in Markdown."""
    lines = [
        f"| | {versions[0].name} | {versions[1].name} | slower by (95 %) | |",
        "|---|---|---|---|---|",
    ]
    for one in verdicts:
        low, high = (f"{100 * edge:+.1f}" for edge in one.slower)
        interval = f"{low} %" if low == high else f"{low} to {high} %"
        mark = "**regression**" if one.regression else ""
        lines.append(
            f"| {one.metric} | {_shown(one.base)} | {_shown(one.new)} | {interval} | {mark} |"
        )
    return "\n".join(lines)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def compared(versions: Sequence[Version], rounds: int, model: str) -> list[Verdict]:
    """All rounds."""
    pairs: dict[str, list[tuple[float, float]]] = {metric: [] for metric in METRICS}
    for one in versions:
        measured(one, model)  # files are in the page cache from here on
    for number in range(rounds):
        order = versions if number % 2 == 0 else [*reversed(versions)]
        found: Mapping[Path, dict[str, float]] = {v.python: measured(v, model) for v in order}
        base, new = (found[version.python] for version in versions)
        for metric, values in pairs.items():
            values.append((base[metric], new[metric]))
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return [judged(m, values, more_is_better=METRICS[m]) for m, values in pairs.items()]


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", help="what this is compared with; default: the last release")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--model", default="brook")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--counts-only", action="store_true", help="instructions alone")
    asked = parser.parse_args()
    versions = [prepared(asked.base or last_release()), prepared(None)]
    verdicts = []
    if shutil.which("valgrind"):
        counts = [instructions(version) for version in versions]
        verdicts += [
            judged(name, [(counts[0][name], counts[1][name])], more_is_better=False)
            for name in counts[0]
        ]
    if not asked.counts_only:
        verdicts += compared(versions, asked.rounds, asked.model)
    print(table(verdicts, versions))
    print("\n" + machine_line(f"{asked.rounds} rounds"))
    if asked.json is not None:
        asked.json.write_text(json.dumps([asdict(one) for one in verdicts], indent=1) + "\n")
    return int(any(one.regression for one in verdicts))


if __name__ == "__main__":
    sys.exit(main())
