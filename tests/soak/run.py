"""`make soak MINUTES=30`: streams whose tokens are known, while everything around them breaks.

Prints its progress, and writes its report even when it is interrupted. Exits 0 if every promise was
kept.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import signal
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from soak import hostile
from soak.injector import LEFT_STATES, NOTICE_SECONDS, Injector, Tally, hostile_requests
from soak.machine import Machine, SmallDisk
from soak.report import Report
from soak.streams import KnownStreams
from tidemill.base.heap import GIVE_BACK_SECONDS

RSS_GROWTH = 0.03
HOSTILE_SENDERS = 4  # some of their requests are answered late or never


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does, and how often.

    Attributes:
        seconds: of the main part; before it, the same for `warm_up` seconds.
        patience: seconds that the main part may last longer, on a busy machine, until everything
            that the run must have seen has happened.
        streams, tokens: known streams of a wave; least tokens of each.
        kill_every, stop_every, fill_every, disk_every: seconds between (a range is drawn from
            half to one and a half of it). A server gives up after 30 deaths within 10 minutes.
        hostile_per_second, left_per_second: rates.
        stall_timeout: the server's.
        least_kills, least_hostile: that the run must have seen.
        judge_memory: the run is long enough for that.
        schemas: some of the streams obey a JSON schema.
    """

    seconds: float
    warm_up: float = 60.0
    patience: float = 120.0
    streams: int = 64
    tokens: int = 150
    kill_every: float = 36.0
    stop_every: float = 150.0
    fill_every: float = 90.0
    disk_every: float = 200.0
    hostile_per_second: float = 4.0
    left_per_second: float = 2.0
    stall_timeout: float = 5.0
    least_kills: int = 20
    least_hostile: int = 1000
    judge_memory: bool = True
    schemas: bool = True


QUEUE_TOKENS = 20_000
FLAGS = (
    *("--kv-memory", "64MiB", "--max-model-len", "2048", "--max-num-seqs", "96"),
    *("--max-queue-tokens", str(QUEUE_TOKENS), "--drain-timeout", "20"),
    *("--log-level", "warning"),
)

Say = Callable[[str], None]


def _sum(metrics: dict[str, float], name: str, label: str = "") -> float:
    """A metric's value over all models."""
    return sum(v for k, v in metrics.items() if k.partition("{")[0] == name and label in k)


class Run:
    """One run of a plan.

    Args:
        plan: what to do.
        seed: of every choice.
        say: told of the progress.
    """

    def __init__(self, plan: Plan, seed: int = 1, say: Say = print) -> None:
        self.report = Report(plan.seconds / 60)
        self._plan = plan
        self._rng = random.Random(seed)
        self._say = say
        self._memory: list[tuple[float, int]] = []

    async def run(self) -> Report:
        """Everything, from the server's start to its end."""
        plan = self._plan
        disk = SmallDisk()
        try:
            machine = await asyncio.to_thread(
                Machine, disk, *FLAGS, "--stall-timeout", str(plan.stall_timeout)
            )
            try:
                await self._break_it(machine)
            finally:
                await self._end(machine)
        finally:
            disk.close()
        return self.report

    async def _break_it(self, machine: Machine) -> None:
        plan = self._plan
        if not await machine.await_ready():
            raise RuntimeError(f"the server is not ready:\n{machine.log()}")
        streams = KnownStreams(machine.target, plan.streams, plan.tokens, schemas=plan.schemas)
        await streams.learn()
        self._say(f"{plan.streams} answers are known")
        injector = Injector(
            machine,
            streams,
            self._rng,
            queue_tokens=QUEUE_TOKENS,
            stall_timeout=plan.stall_timeout,
        )
        requests = hostile_requests(self._rng)
        if plan.judge_memory:
            await self._main(machine, streams, injector, requests, plan.warm_up)
            for _ in range(5):
                together = (injector.crowd(), injector.fill_queue(), streams.wave(self._rng))
                await asyncio.gather(*together)
        before = await self._settled(machine)
        self._memory.clear()
        self._say("warm")
        began = time.monotonic()
        try:
            await self._main(
                machine, streams, injector, requests, plan.seconds, patience=plan.patience
            )
        except asyncio.CancelledError:
            self.report.interrupted = True
        finally:
            self.report.seconds = time.monotonic() - began
            stats = await machine.idle()
            self._judge(machine, streams, injector, stats, before, await self._settled(machine))
            with contextlib.suppress(OSError, ValueError):
                self._note_recoveries(await machine.metrics())

    async def _settled(self, machine: Machine) -> dict[str, int]:
        """Figures when connections have been closed and freed memory has been given back."""
        await machine.idle()
        await asyncio.sleep(GIVE_BACK_SECONDS + 2)
        return machine.figures()

    async def _main(
        self,
        machine: Machine,
        streams: KnownStreams,
        injector: Injector,
        requests: object,
        seconds: float,
        *,
        patience: float = 0.0,
    ) -> None:
        plan = self._plan
        over = time.monotonic() + seconds
        breakers: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (plan.kill_every, injector.kill),
            (plan.stop_every, injector.stop),
            (plan.fill_every, injector.fill_queue),
            (plan.fill_every, injector.crowd),
            (plan.disk_every, injector.kill_without_disk),
            (1 / plan.left_per_second, injector.leave),
        ]
        hostile_every = HOSTILE_SENDERS / plan.hostile_per_second
        breakers += [(hostile_every, lambda: injector.send_hostile(requests))] * HOSTILE_SENDERS
        tasks = [asyncio.ensure_future(self._often(*breaker)) for breaker in breakers]
        tasks.append(asyncio.ensure_future(self._tell(machine, streams, injector)))
        try:
            while (now := time.monotonic()) < over or (
                now < over + patience and not self._seen_enough(injector.tally)
            ):
                wave = asyncio.ensure_future(streams.wave(self._rng))
                await asyncio.wait((wave, *tasks), return_when=asyncio.FIRST_COMPLETED)
                broken = [task for task in tasks if task.done()]
                for task in broken:
                    task.result()  # it only ends by raising
                await wave
                if machine.process.poll() is not None:
                    raise RuntimeError("the server has ended")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _seen_enough(self, tally: Tally) -> bool:
        """True once everything has happened as often as the verdict asks for."""
        return (
            tally.counted_kills >= self._plan.least_kills
            and tally.hostile >= self._plan.least_hostile
            and min(tally.stops, tally.disk_full, len(tally.filled)) > 0
            and len(tally.left) == LEFT_STATES
        )

    async def _often(self, every: float, action: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(every * self._rng.uniform(0.2, 0.5))  # once even in a short run
        while True:
            await action()
            await asyncio.sleep(every * self._rng.uniform(0.5, 1.5))

    async def _tell(self, machine: Machine, streams: KnownStreams, injector: Injector) -> None:
        began = time.monotonic()
        while True:
            figures, tally = machine.figures(), injector.tally
            self._memory.append((time.monotonic() - began, figures["rss"]))
            self._say(
                f"{time.monotonic() - began:5.0f} s: {streams.right} streams right, "
                f"{len(streams.wrong)} wrong, {streams.refused} refused; {tally.kills} kills "
                f"({tally.counted_kills} counted), {tally.stops} stops, {tally.hostile} hostile, "
                f"{sum(tally.left.values())} left, fds {figures['fds']}, "
                f"rss {figures['rss'] >> 20} + {figures['engine_rss'] >> 20} MiB"
            )
            await asyncio.sleep(10)

    # -- the verdict -------------------------------------------------------------------------

    def _judge(
        self,
        machine: Machine,
        streams: KnownStreams,
        injector: Injector,
        stats: dict[str, int],
        before: dict[str, int],
        after: dict[str, int],
    ) -> None:
        plan, report, tally = self._plan, self.report, injector.tally
        wrong = len(streams.wrong)
        report.wrong += [*streams.wrong, *tally.wrong]
        report.require("streams with exactly their tokens", streams.right, "all", wrong == 0)
        report.require("streams with anything else", wrong, "0", wrong == 0)
        report.note("streams refused and asked again", streams.refused)
        least = plan.least_kills
        report.require(
            "engine kills that caught at least 8 streams between first and last token",
            f"{tally.counted_kills} of {tally.kills}",
            f"at least {least}",
            tally.counted_kills >= least,
        )
        report.require("engines stopped (SIGSTOP)", tally.stops, "at least 1", tally.stops > 0)
        report.require(
            "slowest /readyz after a stop",
            f"{tally.slowest_notice:.1f} s",
            f"at most {NOTICE_SECONDS:g} s",
            tally.slowest_notice <= NOTICE_SECONDS,
        )
        report.require(
            "hostile requests", tally.hostile, f"at least {plan.least_hostile}",
            tally.hostile >= plan.least_hostile,
        )  # fmt: skip
        report.note("combinations of kind and value there are", hostile.count())
        answers = ", ".join(
            f"{ {0: 'cut off', -1: 'left after 20 s'}.get(status, status) }: {count}"
            for status, count in sorted(tally.statuses.items())
        )
        report.note("their answers", answers)
        report.require(
            "hostile requests answered 500", tally.statuses[500], "0", tally.statuses[500] == 0
        )
        states = ", ".join(f"{state}: {count}" for state, count in sorted(tally.left.items()))
        report.require("disconnects", states, "every state", len(tally.left) == LEFT_STATES)
        fills = "; ".join(
            ", ".join(f"{status}: {count}" for status, count in sorted(fill.items()))
            for fill in tally.filled[-8:]
        )
        refused = bool(tally.filled) and all(fill[429] > 0 for fill in tally.filled)
        report.require("queue filled ten times over", fills, "refused with 429", refused)
        how = "a full tmpfs" if machine.disk.real else "no file beyond 16 KiB"
        report.require(
            f"engine replaced without disk ({how})", tally.disk_full, "at least 1",
            tally.disk_full > 0,
        )  # fmt: skip
        leaked = stats.get("blocks_used", -1)
        report.require("KV blocks held at the end", leaked, "0", leaked == 0)
        for name, words in (("fds", "file descriptors"), ("processes", "child processes")):
            change = f"{before[name]} to {after[name]}"
            report.require(words, change, "as at the start", after[name] <= before[name])
        report.note("threads", f"{before['threads']} to {after['threads']}")
        self._judge_memory(before, after)

    def _note_recoveries(self, metrics: dict[str, float]) -> None:
        for cause in ("crash", "stall"):
            count = _sum(metrics, "tidemill_engine_restarts_total", f'cause="{cause}"')
            self.report.note(f"engines replaced after a {cause}, warm-up included", int(count))
        count = _sum(metrics, "tidemill_engine_recovery_seconds_count")
        seconds = _sum(metrics, "tidemill_engine_recovery_seconds_sum") / max(count, 1.0)
        self.report.note("mean time to the replay", f"{seconds:.2f} s")
        replayed = int(_sum(metrics, "tidemill_requests_replayed_total"))
        self.report.note("requests that went on on another engine", replayed)

    def _judge_memory(self, before: dict[str, int], after: dict[str, int]) -> None:
        growth = after["rss"] / before["rss"] - 1
        required = f"at most {RSS_GROWTH:.0%} more" if self._plan.judge_memory else ""
        self.report.require(
            "resident memory of the API process",
            f"{before['rss'] / 2**20:.1f} to {after['rss'] / 2**20:.1f} MiB ({growth:+.1%})",
            required,
            growth <= RSS_GROWTH or not self._plan.judge_memory,
        )
        if len(self._memory) >= 8:
            quarter = len(self._memory) // 4
            first = statistics.median(rss for _, rss in self._memory[:quarter])
            last = statistics.median(rss for _, rss in self._memory[-quarter:])
            self.report.note(
                "the same, median of the first and last quarter under load",
                f"{first / 2**20:.1f} to {last / 2**20:.1f} MiB ({last / first - 1:+.1%})",
            )
        engines = f"{before['engine_rss'] / 2**20:.1f} to {after['engine_rss'] / 2**20:.1f} MiB"
        self.report.note("resident memory of the engine process (not the same one)", engines)

    async def _end(self, machine: Machine) -> None:
        alive = machine.process.poll() is None
        code = await asyncio.to_thread(machine.stop) if alive else machine.process.returncode
        self.report.require("exit code after SIGTERM", code, "0", code == 0 and alive)
        found = machine.tracebacks()
        self.report.require("tracebacks in the log", len(found), "0", not found)
        for text in found[:3]:
            self._say(text)
        left = machine.left_behind()
        self.report.require("files left behind", ", ".join(left) or "none", "none", not left)
        if not self.report.kept:
            self._say(machine.log()[-4000:])


async def _main(plan: Plan, seed: int, path: Path) -> int:
    run = Run(plan, seed, lambda line: print(line, flush=True))
    task = asyncio.ensure_future(run.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    except Exception as error:
        run.report.wrong.append(f"the run itself failed: {error!r}")
        raise
    finally:
        path.write_text(run.report.text())
        print(run.report.text())
    return 0 if run.report.kept else 1


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, default=Path("docs/soak.md"))
    options = parser.parse_args()
    seconds = 60 * options.minutes
    least = 20 if options.minutes >= 25 else max(1, int(options.minutes * 20 / 30))
    plan = Plan(seconds, warm_up=180, least_kills=least, least_hostile=min(1000, int(seconds * 2)))
    if options.minutes <= 4:
        plan = Plan(
            seconds,
            warm_up=90,
            kill_every=20.0,
            stop_every=60.0,
            fill_every=60.0,
            disk_every=60.0,
            least_kills=least,
            least_hostile=min(1000, int(seconds * 2)),
        )
    return asyncio.run(_main(plan, options.seed, options.report))


if __name__ == "__main__":
    sys.exit(main())
