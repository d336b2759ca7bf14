from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import SamplingInputs, StepInputs

_Bytes = NDArray[np.uint8]
_Float32 = NDArray[np.float32]
_Int32 = NDArray[np.int32]
_Logprobs = tuple[_Float32, _Int32, _Float32]
_Counter = tuple[str, str, int, int, bool, int, float, float, int, int]
_Profile = tuple[dict[str, float], list[_Counter], bytes]

class NormConfig:
    weight: int
    bias: int
    def __init__(self) -> None: ...

class LinearConfig:
    weight: int
    bias: int
    def __init__(self) -> None: ...

class FeedForwardConfig:
    gate: LinearConfig
    up: LinearConfig
    down: LinearConfig
    activation: int
    gate_scale: float
    def __init__(self) -> None: ...

class ExpertsConfig:
    experts: list[FeedForwardConfig]
    router: LinearConfig
    shared_gate: LinearConfig
    shared: FeedForwardConfig
    router_norm: NormConfig
    experts_norm: NormConfig
    experts_post: NormConfig
    shared_post: NormConfig
    expert_scales: int
    router_scale: float
    e_score_correction_bias: int
    top_k: int
    scoring: int
    groups: int
    top_groups: int
    normalize: bool
    scale_inputs: bool
    scale: float
    jitter: float
    def __init__(self) -> None: ...

class RecurrentShape:
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    delta: bool
    norm_groups: int
    norm_shared: bool
    gate_first: bool
    tiled: bool
    time_min: float
    time_max: float
    z_scale: float
    x_scale: float
    b_scale: float
    c_scale: float
    a_scale: float
    def __init__(self) -> None: ...

class RecurrentConfig(RecurrentShape):
    qkv: LinearConfig
    z: LinearConfig
    a: LinearConfig
    b: LinearConfig
    out: LinearConfig
    conv: int
    conv_bias: int
    a_log: int
    a_bias: int
    skip: int
    norm: int
    def __init__(self) -> None: ...

class LatentShape:
    rank: int
    rope: int
    nope: int
    value: int
    norm_eps: float
    def __init__(self) -> None: ...

class LatentConfig(LatentShape):
    q_down: LinearConfig
    kv_down: LinearConfig
    q_norm: NormConfig
    kv_norm: NormConfig
    k_up: list[LinearConfig]
    v_up: list[LinearConfig]
    def __init__(self) -> None: ...

class LayerConfig:
    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int
    scale: float
    softcap: float
    clip: float
    temperature_scale: float
    temperature_floor: float
    temperature_shift: int
    window: int
    chunked: bool
    rope: int
    cache_group: int
    kv_layer: int
    slopes: int
    sinks: int
    q: LinearConfig
    k: LinearConfig
    v: LinearConfig
    o: LinearConfig
    gate: LinearConfig
    recurrent: RecurrentConfig
    latent: LatentConfig
    attn_norm: NormConfig
    attn_post_norm: NormConfig
    mlp_norm: NormConfig
    mlp_post_norm: NormConfig
    q_norm: NormConfig
    k_norm: NormConfig
    v_norm: NormConfig
    qk_scope: int
    qk_layer_norm: bool
    qk_after_rope: bool
    parallel: bool
    mlp: FeedForwardConfig
    moe: ExpertsConfig
    mixer_scale: float
    parallel_scale: float
    mlp_scale: float
    input_gate: LinearConfig
    input_out: LinearConfig
    input_post: NormConfig
    scale_id: int
    def __init__(self) -> None: ...

class LayerInputsConfig:
    width: int
    vocab: int
    activation: int
    embed_scale: float
    projection_scale: float
    sum_scale: float
    embedding: int
    embedding_type: int
    projection: LinearConfig
    norm: NormConfig
    def __init__(self) -> None: ...

class ModelConfig:
    rank: int
    ranks: int
    stage: int
    stages: int
    vocab: int
    hidden: int
    max_positions: int
    norm_eps: float
    layer_norms: bool
    embed_scale: float
    residual_scale: float
    logit_scale: float
    logit_softcap: float
    layers: list[LayerConfig]
    ropes: list[list[float]]
    rope_scales: list[float]
    group_windows: list[int]
    kv_type: int
    block_size: int
    embedding: int
    embedding_type: int
    positions: int
    types: int
    causal: bool
    norm_sums: bool
    embed_norm: NormConfig
    final_norm: NormConfig
    lm_head: LinearConfig
    inputs: LayerInputsConfig
    def __init__(self) -> None: ...

class Handle:
    def set_mask(self, row: int, draft: int, bits: _Bytes) -> None: ...
    def done(self, seconds: float = 0.0) -> bool: ...
    def result(
        self,
    ) -> tuple[
        _Int32,
        _Logprobs | None,
        _Logprobs | None,
        _Float32 | None,
        tuple[float, float, float, float],
        _Float32 | None,
    ]: ...
    def layer_hidden(self) -> _Float32 | None: ...
    def candidates(self) -> tuple[_Int32, _Float32, _Float32] | None: ...

class Executor:
    def __init__(self, threads: int, isa: str, float32_compute: bool) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def float32_compute(self) -> bool: ...
    def matrix_bytes(self, type: int, n: int, k: int) -> int: ...
    def reserve(self, nbytes: int) -> None: ...
    def adopt(self, packed: _Bytes) -> None: ...
    def add_matrix(self, name: str, type: int, n: int, k: int) -> int: ...
    def pack(
        self, name: str, id: int, source_type: int, source: _Bytes, first: int, last: int
    ) -> None: ...
    def fail(self, kind: str, message: str, param: str) -> None: ...
    def packed(self) -> _Bytes: ...
    def unpacked_bytes(self) -> int: ...
    def add_vector(self, name: str, source_type: int, count: int, source: _Bytes) -> int: ...
    def build(self, config: ModelConfig, embedding: _Bytes, inputs: _Bytes) -> None: ...
    def join(self, descriptor: int, rank: int, ranks: int) -> None: ...
    def join_chain(self, from_: int, to: int, stage: int, stages: int) -> None: ...
    def fail_group(self) -> None: ...
    def weight_bytes(self) -> int: ...
    def kv_bytes(self) -> int: ...
    def block_bytes(self, group: int) -> int: ...
    def state_bytes(self) -> int: ...
    def allocate_cache(self, num_blocks: list[int], states: int) -> None: ...
    def retype_cache(self, type: int) -> None: ...
    def submit(self, inputs: StepInputs, vocab: int) -> Handle: ...
    def new_adapter(self) -> Adapter: ...
    def load_adapter(self, slot: int, adapter: Adapter | None) -> None: ...
    def copy_blocks(self, group: int, pairs: _Int32) -> None: ...
    def limit_cache(self, blocks: int) -> None: ...
    def give_back_blocks(self, group: int, blocks: _Int32) -> None: ...
    def read_blocks(self, group: int, blocks: _Int32, out: _Bytes) -> None: ...
    def write_blocks(self, group: int, blocks: _Int32, data: _Bytes) -> None: ...
    def read_state(self, state: int, at: int, out: _Bytes) -> None: ...
    def write_state(self, state: int, at: int, data: _Bytes, tokens: int) -> None: ...
    def export_layer(
        self,
        layer: int,
        blocks: _Int32,
        keys: _Bytes,
        values: _Bytes,
        key_scales: _Float32,
        value_scales: _Float32,
    ) -> None: ...
    def import_layer(
        self,
        layer: int,
        blocks: _Int32,
        keys: _Bytes,
        values: _Bytes,
        key_scales: _Float32,
        value_scales: _Float32,
    ) -> None: ...
    def start_profile(self, most_events: int) -> None: ...
    def end_profile(self) -> _Profile | None: ...
    def peak(self, act: int) -> float: ...
    def progress(self) -> int: ...
    def close(self) -> None: ...

class Adapter:
    def reserve(self, nbytes: int) -> None: ...
    def change_product(
        self,
        executor: Executor,
        matrix: int,
        bias: int,
        a: _Float32,
        b: _Float32,
        scale: float,
        gain: _Float32 | None,
        input_gain: _Float32 | None,
    ) -> None: ...
    def shift_product(
        self, executor: Executor, matrix: int, replaces: int, values: _Float32
    ) -> None: ...
    def replace_product(self, executor: Executor, matrix: int, values: _Float32) -> None: ...
    def change_embedding(
        self,
        a: _Float32,
        b: _Float32,
        scale: float,
        gain: _Float32 | None,
        input_gain: _Float32 | None,
    ) -> None: ...
    def replace_embedding(self, values: _Float32) -> None: ...
    def replace_vector(self, executor: Executor, vector: int, values: _Float32) -> None: ...
    def bytes(self) -> int: ...

PANEL_ROWS: int
GROUP_BYTES: int
PROFILE_NAMES: tuple[list[str], list[str]]

def shard_bounds(n: int, ranks: int) -> list[int]: ...
def adapter_product_bytes(wide: bool, n: int, k: int, rank: int) -> int: ...
def adapter_embedding_bytes(wide: bool, n: int, k: int, rank: int) -> int: ...
def available_isas() -> list[str]: ...
def checksum(data: _Bytes, threads: int) -> int: ...
def read_bandwidth(threads: int, bytes_per_thread: int, rounds: int) -> float: ...
def sample_rows(logits: _Float32, sampling: SamplingInputs, masks: list[Any]) -> list[int]: ...
def drawn_from(logits: _Float32, sampling: SamplingInputs) -> list[list[int]]: ...
def uniform(seed: int, choice: int, position: int, draw: int) -> float: ...
def race_time(seed: int, choice: int, position: int, token: int) -> float: ...
def philox4x32(counter: list[int], key: list[int]) -> list[int]: ...
