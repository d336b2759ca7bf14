"""What fits into a memory, at its edges."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from helpers.sparse_model import LLAMA_7B, write_sparse

from tidemill.contract.config import EngineConfig
from tidemill.loading.checkpoint import open_model
from tidemill.loading.parts import ModelFiles
from tidemill.planning.device_table import DEVICES
from tidemill.planning.memory import Subject, budget, fit
from tidemill.planning.plan import Load, Plan, Where, make_plan
from tidemill.worker.needs import needs_of
from tidemill.worker.opening import of_files

GIB = 2**30
SMALL = {**LLAMA_7B, "num_hidden_layers": 4, "num_key_value_heads": 8}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return open_model(write_sparse(tmp_path_factory.mktemp("small"), SMALL))


def config(files: ModelFiles, **changes: object) -> EngineConfig:
    settings: dict[str, object] = {"threads": 1, **changes}
    return EngineConfig(model=str(files.path), served_name="m", **settings)  # type: ignore[arg-type]


def subject(files: ModelFiles, **changes: object) -> Subject:
    asked = config(files, **changes)
    opened = of_files(asked, files)
    return Subject(asked, files.spec, needs_of(asked, opened))


@pytest.mark.parametrize("context", [32, 1000, 4096])
@pytest.mark.parametrize("streams", [1, 7, 64])
def test_at_the_edge_of_a_memory(files: ModelFiles, context: int, streams: int) -> None:
    model = subject(files, max_model_len=context)
    total = fit(model, 100 * GIB, context, streams).total
    exact, short = fit(model, total, context, streams), fit(model, total - 1, context, streams)
    # The engine's own check of the weights leaves 512 MiB, which small caches do not need.
    if exact.why is None or "more than there is" in exact.why:
        assert exact.fits and not short.fits
        assert exact.max_concurrency >= streams > short.max_concurrency
        assert exact.max_context >= min(context, 4096) // 32 * 32
    else:
        assert "need" in exact.why and not exact.fits
        assert exact.max_concurrency == exact.max_context == 0
    assert exact.total == exact.weights + exact.cache + exact.overhead


def test_context_and_requests_trade_against_each_other(files: ModelFiles) -> None:
    model = subject(files)
    found = [fit(model, 6 * GIB, None, n).max_context for n in (1, 16, 64, 256)]
    assert found == sorted(found, reverse=True) and found[0] == 4096 and 0 < found[-1] < 4096
    most = [fit(model, 6 * GIB, n).max_concurrency for n in (64, 512, 4096)]
    assert most == sorted(most, reverse=True) and most[-1] >= 1


def test_without_requests_it_is_what_serve_would_choose(files: ModelFiles) -> None:
    model = subject(files)
    found = fit(model, 8 * GIB)
    assert found.fits and found.context == 4096
    left = 8 * GIB - found.weights - found.server - found.process
    assert found.cache <= 0.6 * left and found.total <= 8 * GIB
    none = fit(model, GIB)
    assert not none.fits and "quantize with" in str(none.why)


def test_left_memory_as_adapters(files: ModelFiles) -> None:
    model = subject(files)
    found = budget(model, fit(model, 8 * GIB, 256, 1))
    layer = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 11008)
    assert found.adapter_bytes == 4 * layer * 16 * 2
    assert found.adapters == found.bytes // found.adapter_bytes > 10


def test_quantization_that_makes_it_fit(tmp_path: Path) -> None:
    files = open_model(write_sparse(tmp_path, LLAMA_7B))
    made = make_plan(config(files), files, Where(7 * GIB, "as given"), Load(context=2048))
    assert not made.fit.fits and 12 * GIB < made.fit.weights < 14 * GIB
    fitting = [(o.quantize, o.kv_dtype) for o in made.alternatives if o.fits]
    assert fitting[0] == ("q4_0", "auto") and ("q8_0", "auto") not in fitting
    assert next(o.total for o in made.alternatives if o.quantize == "none") < made.fit.total
    assert made.predicted is None and "does not fit" in str(made.why_none)


def test_a_document(files: ModelFiles) -> None:
    where = Where(DEVICES["l40s"].memory, "of l40s", device=DEVICES["l40s"])
    load = Load(context=2048, concurrency=8, objectives={"tpot": 50.0})
    made = make_plan(config(files, max_model_len=2048), files, where, load)
    document = msgspec.json.decode(msgspec.json.encode(made.as_json()))
    assert document["kv_bytes_per_token"] == 4 * 2 * 1024 * 2
    assert document["weights_bytes"] == sum(document["weights"].values())
    assert document["overhead_bytes"] == sum(document["overhead"].values())
    assert document["total_bytes"] == (
        document["weights_bytes"] + document["cache_bytes"] + document["overhead_bytes"]
    )
    assert document["cache_bytes"] == 8 * 2048 * document["kv_bytes_per_token"]
    assert document["max_context"] == 4096 and document["device"] == "l40s"
    points = document["predicted"]["points"]
    assert [p["concurrency"] for p in points][:4] == [1, 2, 4, 8]
    assert all(p["tpot_ms"]["low"] < p["tpot_ms"]["value"] < p["tpot_ms"]["high"] for p in points)
    # 2.4 GB of weights are far from what the device's shares were fitted to.
    assert all("measured: 6 to 7 GB" in p["beyond"][0] for p in points)


def test_nothing_is_predicted_of_a_machine_that_nobody_measured(files: ModelFiles) -> None:
    made: Plan = make_plan(config(files), files, Where(8 * GIB, "free"), Load())
    assert made.predicted is None and "tidemill calibrate" in str(made.why_none)
    assert made.as_json()["predicted"] is None
    long = Where(DEVICES["l40s"].memory, "of l40s", device=DEVICES["l40s"])
    made = make_plan(config(files, max_model_len=256), files, long, Load(context=256))
    assert made.predicted is None and "longer than the context" in str(made.why_none)
