"""An engine core over the fake backend."""

from __future__ import annotations

from helpers.fake_backend import FakeBackend, tiny_spec

from tidemill.contract.config import EngineConfig
from tidemill.contract.wire import EngineInfo
from tidemill.engine.core import DEPTH, EngineCore, make_core
from tidemill.executor.inproc import InprocExecutor, OpenedExecutor
from tidemill.worker.runner import Runner

VOCAB = 997
EOS = 3


def fake_core(
    *,
    num_blocks: int = 256,
    max_num_seqs: int = 64,
    max_step_tokens: int = 128,
    max_model_len: int = 512,
    prefix_caching: bool = True,
    step_seconds: float = 0.0,
    depth: int = DEPTH,
    layers: int = 0,
    speculate: str = "off",
) -> tuple[EngineCore, FakeBackend]:
    """A started core and its backend; close the core."""
    config = EngineConfig(
        model="fake",
        served_name="fake",
        block_size=16,
        max_num_seqs=max_num_seqs,
        max_step_tokens=max_step_tokens,
        prefix_caching=prefix_caching,
    )
    backend = FakeBackend(tiny_spec(VOCAB), 16, step_seconds=step_seconds)
    backend.allocate_cache((num_blocks,))
    info = EngineInfo(
        model="fake",
        backend="fake",
        isa="none",
        device="cpu",
        dtype="float32",
        quantization="none",
        kv_dtype="float32",
        threads=1,
        vocab_size=VOCAB,
        max_model_len=min(max_model_len, num_blocks * 16),
        block_size=16,
        num_blocks=num_blocks,
        kv_bytes_per_token=4,
        kv_bytes=num_blocks * 64,
        weight_bytes=0,
        max_num_seqs=max_num_seqs,
        max_step_tokens=max_step_tokens,
        prefix_caching=prefix_caching,
        eos_token_ids=(EOS,),
        speculation=speculate,
    )
    executor = InprocExecutor(Runner(backend, max_model_len))
    backend.layers = layers
    opened = OpenedExecutor(executor, info, "fake", 1, sliced_layers=layers)
    core = make_core(opened, config, depth=depth)
    return core.start(), backend
