"""An offline engine over a real backend and a tiny random model, without files."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from helpers.drafting import let_draft
from helpers.random_model import CACHES, make_spec, make_tensors

from tidemill.backends.base import Backend, BackendOptions
from tidemill.contract.config import EngineConfig
from tidemill.contract.wire import EngineInfo
from tidemill.engine.core import DEPTH, EngineCore, make_core
from tidemill.engine.offline import InprocEngine
from tidemill.executor.base import Executor
from tidemill.executor.inproc import InprocExecutor, OpenedExecutor
from tidemill.worker.runner import Runner
from tidemill.worker.speculate.drafter import Drafter
from tidemill.worker.tiers.opening import open_tiers

VOCAB = 131
MAX_LEN = 256


def real_engine(backend: str, **options: object) -> InprocEngine:
    """`real_core` behind the offline interface. Close it when done."""
    return InprocEngine(real_core(backend, **options))  # type: ignore[arg-type]


def real_core(
    backend: str,
    *,
    dtype: str = "float32",
    kv_dtype: str = "float32",
    stored: str = "F32",
    quantize: str = "none",
    block_size: int = 16,
    num_blocks: int = 400,
    max_num_seqs: int = 64,
    max_step_tokens: int = 512,
    prefix_caching: bool = True,
    threads: int = 1,
    depth: int = DEPTH,
    model: str = "plain",
    speculate: str = "off",
    snapshots: int = 12,
    draft_states: int = 60,
    wrap: Callable[[Executor], Executor] = lambda executor: executor,
    change: Callable[[Backend], None] = lambda backend: None,
    drafter: Drafter | None = None,
    tiers: EngineConfig | None = None,
) -> EngineCore:
    """Close it when done. `model`: one of `CACHES`; `wrap`: what stands before the executor;
    `change`: called with the backend; `drafter`: stands for lookup; `tiers`: has those
    of the engine."""
    spec = make_spec(vocab=VOCAB, hidden=64, heads=4, kv_heads=2, head_dim=16, layers=2)
    spec = CACHES[model](spec)
    recurrent = spec.state_bytes > 0
    options = BackendOptions(dtype, quantize, kv_dtype, block_size, MAX_LEN, threads)
    load = import_module(f"tidemill.backends.{backend}").load
    loaded = load(spec, make_tensors(spec, stored), options)
    change(loaded)
    loaded.allocate_cache(
        (num_blocks,) * len(spec.cache_groups()),
        states=2 * max_num_seqs + snapshots + draft_states,
    )
    config = EngineConfig(
        model="random", served_name="random", prefix_caching=prefix_caching, block_size=block_size
    )
    info = EngineInfo(
        model="random",
        backend=backend,
        isa=loaded.memory().isa,
        device="cpu",
        dtype=dtype,
        quantization=quantize,
        kv_dtype=kv_dtype,
        threads=threads,
        vocab_size=VOCAB,
        max_model_len=min(MAX_LEN, num_blocks * block_size),
        block_size=block_size,
        num_blocks=num_blocks,
        kv_bytes_per_token=spec.kv_bytes_per_token(kv_dtype),
        kv_bytes=0,
        weight_bytes=0,
        max_num_seqs=max_num_seqs,
        max_step_tokens=max_step_tokens,
        prefix_caching=prefix_caching,
        eos_token_ids=(5,),
        speculation=speculate,
        recurrent_drafts=draft_states if recurrent else None,
    )
    runner = Runner(
        loaded,
        MAX_LEN,
        slots=4,
        states=max_num_seqs if recurrent else 0,
        snapshots=snapshots,
        draft_states=draft_states,
    )
    if drafter is not None:
        let_draft(runner, drafter)
    if tiers is not None:
        runner.mover = open_tiers(tiers, loaded, "random", lambda line: None, runner.first_snapshot)
    executor = InprocExecutor(runner)
    groups = len(spec.cache_groups())
    layers = len(spec.layers) if loaded.slices_layers and not recurrent else 0
    opened = OpenedExecutor(
        wrap(executor),
        info,
        "random",
        groups,
        recurrent=recurrent,
        snapshots=snapshots,
        sliced_layers=layers,
        tiers=runner.tiers,
        record_sizes=runner.record_sizes,
    )
    return make_core(opened, config, depth=depth, always_draft=True).start()
