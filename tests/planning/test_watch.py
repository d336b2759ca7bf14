"""A server's steps against the costs that were measured: hourly, by what takes their time."""

from __future__ import annotations

import logging

import msgspec
import pytest

from tidemill.contract.wire import EngineInfo, EngineStats
from tidemill.metrics.registry import ServerMetrics
from tidemill.planning.kept import keep_costs, this_machine
from tidemill.planning.watch import EVERY_SECONDS, StepWatch, StepWatches
from tidemill.simulate.costs import Costs, EngineFacts, Measured, StepSeconds, Work

STEP = StepSeconds(tokens=((1.0, 0.01), (512.0, 0.2)), sample=1e-4, pair=1e-9, reach=1e-6)
COSTS = Costs(
    engine=EngineFacts(
        model="m", family="llama", parameters=100, dtype="bfloat16", kv_dtype="bfloat16",
        quantization="none", weight_bytes=1000, threads=2,
    ),
    machine=this_machine(),
    step=STEP,
    measured=Measured(tokens=512, pairs=1e6, reach=1e5, samples=64),
    created="2026-11-27T00:00:00Z",
)  # fmt: skip
BLOCK = 32


class Server:
    """An engine's statistics, and the clock of who looks at them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.told: dict[str, float] = {}
        self.stats = EngineStats(blocks_total=10_000)
        self.watch = StepWatch("m", COSTS, BLOCK, self.told.__setitem__, clock=lambda: self.now)

    def step(self, *, tokens: int, rows: int, blocks: int, factor: float, running: int = 0) -> None:
        """A step that takes so many times what is predicted."""
        reach = blocks * BLOCK - rows * BLOCK / 2
        if tokens == rows:
            work = Work(tokens, reach, reach, rows, rows)
        else:
            start = max(0, blocks * BLOCK - BLOCK // 2 - tokens)
            work = Work(tokens, tokens * start + tokens * (tokens + 1) / 2, start + tokens, 1, 1)
        self.stats = msgspec.structs.replace(
            self.stats,
            steps=self.stats.steps + 1,
            compute_seconds=self.stats.compute_seconds + factor * STEP.of(work),
            last_step_tokens=tokens, last_step_rows=rows, blocks_used=blocks,
            running=running or rows,
        )  # fmt: skip
        self.watch(self.stats)

    def hour(self, **factors: float) -> None:
        """Steps of all kinds; `factors` by kind, 1 for others."""
        for _ in range(60):
            self.step(tokens=1, rows=1, blocks=4, factor=factors.get("weights", 1.0))
            self.step(tokens=8, rows=8, blocks=32, factor=factors.get("batch", 1.0))
            self.step(tokens=2, rows=2, blocks=1500, factor=factors.get("cache", 1.0))
            self.step(tokens=256, rows=1, blocks=8, factor=factors.get("prompt", 1.0))
        self.now += EVERY_SECONDS
        self.step(tokens=300, rows=5, blocks=50, factor=1.0)


def test_steps_as_predicted_are_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    with caplog.at_level(logging.WARNING, "tidemill.planning.watch"):
        server.hour()
    assert server.told.keys() == {"weights", "batch", "cache", "prompt", "all"}
    assert all(abs(error) < 1e-9 for error in server.told.values())
    assert not caplog.records


@pytest.mark.parametrize(
    ("term", "said"),
    [
        ("weights", "reading weights"), ("batch", "products of a few rows"),
        ("cache", "reading the KV cache"), ("prompt", "arithmetic of prompts"),
    ],
)  # fmt: skip
def test_a_drift_is_said_with_its_likely_term(
    term: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server()
    with caplog.at_level(logging.WARNING, "tidemill.planning.watch"):
        server.hour(**{term: 1.4})
    assert server.told[term] == pytest.approx(0.4, abs=0.01)
    others = server.told.keys() - {term, "all"}
    assert all(abs(server.told[other]) < 0.01 for other in others)
    assert 0 < server.told["all"] <= 0.4
    (record,) = caplog.records
    assert said in record.getMessage() and "+40 %" in record.getMessage()
    # The next hour is compared by itself.
    caplog.clear()
    server.hour()
    assert abs(server.told[term]) < 0.01 and not caplog.records


def test_what_the_statistics_do_not_say_is_left_out() -> None:
    server = Server()
    for _ in range(200):
        server.step(tokens=300, rows=5, blocks=50, factor=9.0)  # a prompt beside streams
        server.step(tokens=64, rows=64, blocks=9000, factor=9.0)  # beyond what was measured
    for _ in range(40):  # too few
        server.step(tokens=1, rows=1, blocks=4, factor=9.0)
    for _ in range(100):  # several steps at once
        server.stats = msgspec.structs.replace(server.stats, steps=server.stats.steps + 1)
        server.step(tokens=1, rows=1, blocks=4, factor=9.0)
    server.hour()
    assert server.told.keys() >= {"batch", "cache", "prompt"}
    assert abs(server.told["batch"]) < 1e-9
    # A new engine counts from 0 again.
    server.stats = EngineStats()
    server.hour()
    assert abs(server.told["weights"]) < 0.3


def info(**changes: object) -> EngineInfo:
    values: dict[str, object] = {
        "model": "m", "backend": "native", "isa": "avx2", "device": "cpu", "dtype": "bfloat16",
        "quantization": "none", "kv_dtype": "bfloat16", "threads": 2, "vocab_size": 9,
        "max_model_len": 64, "block_size": BLOCK, "num_blocks": 9, "kv_bytes_per_token": 1,
        "kv_bytes": 1, "weight_bytes": 1005, "max_num_seqs": 4, "max_step_tokens": 64,
        "prefix_caching": True, "family": "llama", "parameters": 100, **changes,
    }  # fmt: skip
    return EngineInfo(**values)  # type: ignore[arg-type]


def test_only_models_with_costs_are_watched(tmp_path, caplog) -> None:  # type: ignore[no-untyped-def]
    keep_costs(tmp_path, COSTS)
    metrics = ServerMetrics()
    watches = StepWatches(tmp_path)
    assert watches("other", info(threads=8), metrics) is None
    with caplog.at_level(logging.INFO, "tidemill.planning.watch"):
        assert watches("m", info(), metrics) is not None
        assert watches("again", info(), metrics) is not None
    assert "ms per token of one stream" in caplog.records[0].getMessage()
    assert "tidemill_plan_error_ratio" in {f.name for f in metrics.registry.collect()}
