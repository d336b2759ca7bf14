"""Engines in processes of their own, and taking turns with them.

An engine is a script of benchmarks/workers, run by the Python of its own environment. All know the
same operations (see workers/run_tidemill.py). Between turns they sleep.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import harness
import peers

from tidemill.backends import native

WORKERS = Path(__file__).resolve().with_name("workers")
LOGS = harness.WORK / "logs"
OURS = "tidemill"
# A peer's setting that was slower than its best by more than this the first time is not run again.
DROPPED_ABOVE = 1.2

# The settings of each peer that are tried; its figure is the fastest's.
SETTINGS: dict[str, tuple[dict[str, Any], ...]] = {
    OURS: ({},),
    "llama_cpp": (
        {"flash": False, "repack": True},
        {"flash": True, "repack": True},
        {"flash": False, "repack": False},
    ),
    "transformers": ({},),
}
_SCRIPTS = {
    OURS: "run_tidemill.py",
    "llama_cpp": "run_llama.py",
    "transformers": "run_transformers.py",
}


class EngineFailed(Exception):
    """An engine cannot do what it is asked; says why."""


class Engine:
    """One engine process.

    Args:
        name: of `SETTINGS`.

    Raises peers.PeerMissing.
    """

    def __init__(self, name: str) -> None:
        LOGS.mkdir(parents=True, exist_ok=True)
        python, environment = harness.ROOT / ".venv/bin/python", {}
        if name != OURS:
            peer = peers.get(name)
            python, environment = peer.python, peer.environment
        self.name = name
        self._log = (LOGS / f"{name}.log").open("ab")
        self._process = subprocess.Popen(
            [str(python), str(WORKERS / _SCRIPTS[name])],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def call(self, op: str, **arguments: object) -> Any:
        """Have it do something. Raises EngineFailed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise EngineFailed(f"{self.name} ended; see {self._log.name}")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineFailed(answer["error"])
        return answer["value"]

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._log.close()


@contextlib.contextmanager
def opened(name: str, **arguments: object) -> Iterator[tuple[Engine, dict[str, Any]]]:
    """An engine with a model, and what it says of it."""
    engine = Engine(name)
    try:
        yield engine, engine.call("open", threads=harness.threads(), **arguments)
    finally:
        engine.close()


def read_rate() -> float:
    """What the machine reads per second just now, in bytes."""
    return native.read_bandwidth(harness.threads())


@dataclass
class Samples:
    """What one side gave: a value per repetition, and the read beside each in bytes per second."""

    values: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def read(self) -> float:
        return statistics.median(self.reads)

    def share_of_read(self, bytes_each: float) -> float:
        """Median share of the read beside it, when a unit of value reads so many bytes."""
        return statistics.median(
            bytes_each * v / r for v, r in zip(self.values, self.reads, strict=True)
        )


def take_turns(
    sides: Mapping[str, Callable[[], float]], repetitions: int, peer_of: Mapping[str, str]
) -> dict[str, Samples]:
    """Measure every side once per repetition, in turn, beginning with another each time.

    Args:
        sides: name -> measures and returns a rate: more is better.
        peer_of: side -> peer; a peer's slow settings are dropped after the first repetition.
    """
    found = {name: Samples() for name in sides}
    active = list(sides)
    for repetition in range(repetitions):
        first = repetition % len(active)
        for name in active[first:] + active[:first]:
            before = read_rate()
            value = sides[name]()
            found[name].values.append(value)
            found[name].reads.append((before + read_rate()) / 2)
        best: dict[str, float] = {}
        for name in active:
            peer = peer_of[name]
            best[peer] = max(best.get(peer, 0.0), found[name].values[0])
        active = [n for n in active if found[n].values[0] * DROPPED_ABOVE >= best[peer_of[n]]]
    return {name: found[name] for name in active}


@dataclass
class Contest:
    """The outcome: samples by side, what each engine said, who is missing and why."""

    samples: dict[str, Samples]
    said: dict[str, dict[str, Any]]
    peer_of: dict[str, str]
    missing: dict[str, str]

    def best(self, peer: str) -> tuple[str, Samples] | None:
        """A peer's fastest setting; None when it is missing."""
        names = [n for n in self.samples if self.peer_of[n] == peer]
        if not names:
            return None
        name = max(names, key=lambda n: self.samples[n].median)
        return name, self.samples[name]


def contest(
    models: Mapping[str, Path], run: Callable[[Engine], float], repetitions: int,
    *, context: int, sequences: int = 1, prepare: Callable[[Engine], object] | None = None,
    settings: Mapping[str, tuple[dict[str, Any], ...]] = SETTINGS,
) -> Contest:  # fmt: skip
    """Open every engine of `models` in each of its settings and have them take turns.

    Args:
        models: engine -> model.
        run: measures one engine once; a rate.
        prepare: done once before the turns.
    """
    outcome = Contest({}, {}, {}, {})
    engines: dict[str, Engine] = {}
    with contextlib.ExitStack() as stack:
        for peer, model in models.items():
            for setting in settings[peer]:
                try:
                    engine, said = stack.enter_context(
                        opened(peer, model=str(model), context=context, sequences=sequences,
                               **setting)
                    )  # fmt: skip
                    if prepare is not None:
                        prepare(engine)
                except (EngineFailed, peers.PeerMissing) as error:
                    outcome.missing[peer] = str(error)
                    break
                name = f"{peer}: {said['setting']}"
                engines[name] = engine
                outcome.said[name] = said
                outcome.peer_of[name] = peer
        sides = {name: (lambda e=engine: run(e)) for name, engine in engines.items()}
        if sides:
            outcome.samples = take_turns(sides, repetitions, outcome.peer_of)
    return outcome
