"""Weights packed beside the first steps: in the order of need, waited for, and given up cleanly."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.backend_driver import BackendDriver, options, wait_loaded
from helpers.random_model import make_spec, make_tensors

from tidemill.backends import native
from tidemill.backends.base import Checksum, StepHandle, UInt8
from tidemill.backends.native import _core, packing
from tidemill.backends.native.backend import NativeBackend
from tidemill.base.errors import ErrorKind, TidemillError, model_file_error
from tidemill.models.spec import DecoderSpec
from tidemill.models.tensors import DeferredTensor, RawTensor, TensorHeader

SPEC = make_spec(vocab=101, tied=False, hidden=64, intermediate=96, head_dim=16)
TENSORS = make_tensors(SPEC, "BF16")
SECONDS = 60.0


class Source:
    """Tensors whose matrices are read when they are allowed to be.

    Attributes:
        read: names, in the order in which they were read.
        gone: name -> byte ranges that were let go.
        fails: name -> what reading it raises.
    """

    def __init__(self, tensors: dict[str, RawTensor], *, held: str | None = None) -> None:
        self.read: list[str] = []
        self.gone: dict[str, list[tuple[int, int]]] = {}
        self.fails: dict[str, Exception] = {}
        self.go_on = threading.Event()
        self.arrived = threading.Event()  # at `held`
        self._held = held
        self._tensors = tensors
        self.tensors = {name: self._deferred(name, t) for name, t in tensors.items()}

    def _deferred(self, name: str, tensor: RawTensor) -> RawTensor:
        if len(tensor.shape) < 2:
            return tensor
        header = TensorHeader(tensor.dtype, tensor.shape, tensor.nbytes)
        release_pages = self.gone.setdefault(name, [])
        return DeferredTensor(
            header, lambda: self._read(name), lambda b, e: release_pages.append((b, e))
        )

    def _read(self, name: str) -> RawTensor:
        if name == self._held:
            self.arrived.set()
            assert self.go_on.wait(SECONDS)
        if name in self.fails:
            raise self.fails[name]
        self.read.append(name)
        return self._tensors[name]


class Kept:
    """Holds what a backend packed; see `backends.base.PackedWeights`."""

    def __init__(self) -> None:
        self._data = np.zeros(0, np.uint8)
        self._there = threading.Event()

    @property
    def data(self) -> np.ndarray:
        """A copy of it."""
        assert self._there.wait(SECONDS)
        return self._data

    def find(self, layout: str, nbytes: int, checksum: Checksum) -> None:
        return None

    def keep(self, layout: str, data: UInt8, checksum: Checksum) -> None:
        self._data = data.copy()
        self._there.set()

    def close(self) -> None:
        pass


def load(
    source: Source, spec: DecoderSpec = SPEC, kept: Kept | None = None, **changes: Any
) -> NativeBackend:
    backend = native.load(spec, source.tensors, options(threads=2, **changes), kept)
    assert isinstance(backend, NativeBackend)
    return backend


def submit(driver: BackendDriver) -> StepHandle:
    rows = [(driver.sequence([5, 7, 11, 13]), 4), (driver.sequence([2] * 9), 9)]
    return driver.backend.submit(driver.inputs(rows))


def test_a_step_waits_for_what_it_reaches_and_gets_the_same_bits() -> None:
    packed = Kept()
    whole = load(Source(TENSORS), kept=packed)
    assert wait_loaded(whole) is None
    expected = submit(BackendDriver(whole)).result().logits
    whole.close()
    for held in ("layers.0.attn.q.weight", "layers.1.mlp.down.weight", "lm_head.weight"):
        source = Source(TENSORS, held=held)
        kept = Kept()
        backend = load(source, kept=kept)
        step = submit(BackendDriver(backend))
        assert source.arrived.wait(SECONDS)
        assert not step.done(0.05)
        assert not backend.when_loaded(lambda error: None)
        assert backend.memory().promised_bytes > 0
        begun = time.monotonic()
        time.sleep(0.3)
        source.go_on.set()
        result = step.result()
        assert result.logits is not None and np.array_equal(result.logits, expected)
        # What it waited is not what such a step takes.
        assert 0 < result.seconds[1] < time.monotonic() - begun - 0.1
        assert wait_loaded(backend) is None and backend.memory().promised_bytes == 0
        assert len(kept.data) and np.array_equal(kept.data, packed.data)
        backend.close()


@pytest.mark.parametrize("tied", [False, True])
def test_matrices_come_in_the_order_of_need(tied: bool) -> None:
    spec = replace(SPEC, tied_embeddings=tied)
    source = Source(make_tensors(spec, "BF16"))
    backend = load(source, spec)
    assert wait_loaded(backend) is None
    layers = [int(name.split(".")[1]) for name in source.read if name.startswith("layers.")]
    assert layers == sorted(layers) and set(layers) == set(range(len(spec.layers)))
    assert source.read[0 if tied else -1] == ("embed.weight" if tied else "lm_head.weight")
    assert len(source.read) == len(set(source.read))
    backend.close()


@pytest.mark.parametrize("quantize", ["none", "q8_0", "q4_0"])
@pytest.mark.parametrize("threads", [1, 3])
def test_pieces_change_no_byte(
    quantize: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One panel at a time, or each matrix at once: and every byte of the source is let go once."""
    found = []
    for nbytes in (1, 2**40):
        monkeypatch.setattr(packing, "_PIECE_BYTES", nbytes)
        source = Source(TENSORS)
        kept = Kept()
        backend = load(source, quantize=quantize, kept=kept)
        assert wait_loaded(backend) is None
        found.append(kept.data)
        in_place = {"embed.weight"} if quantize == "none" else set()
        assert {name for name, parts in source.gone.items() if parts} == {*source.read} - in_place
        for name in {*source.read} - in_place:
            begins, ends = zip(*source.gone[name], strict=True)
            assert (0, *ends) == (*begins, TENSORS[name].nbytes)
            rows = TENSORS[name].shape[0]
            assert len(begins) == (-(-rows // _core.PANEL_ROWS) if nbytes == 1 else 1)
        backend.close()
    assert np.array_equal(*found)


def test_the_core_packs_in_order_and_whole_panels_alone() -> None:
    core = _core.Executor(1, "", False)
    kind, count = 2, 80  # bf16
    data = np.zeros(count * 64 * 2, np.uint8)
    core.reserve(2 * core.matrix_bytes(kind, count, 64))
    assert [core.add_matrix(name, kind, count, 64) for name in ("a", "b")] == [0, 1]
    for wrong in ((1, 0, 80), (0, 32, 64), (0, 0, 33), (0, 0, 96), (0, 0, 0)):
        with pytest.raises(TidemillError, match="in the order"):
            core.pack("a", wrong[0], kind, data, *wrong[1:])
    with pytest.raises(TidemillError, match="damaged or truncated") as caught:
        core.pack("a", 0, kind, data[:-1], 0, 80)
    assert caught.value.kind is ErrorKind.MODEL_FILE and caught.value.param == "a"
    core.pack("a", 0, kind, data, 0, 64)
    core.pack("a", 0, kind, data, 64, 80)
    core.pack("b", 1, kind, data, 0, 80)
    assert core.unpacked_bytes() == 0
    core.close()
    with pytest.raises(TidemillError, match="closed"):
        core.pack("b", 1, kind, data, 0, 80)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (model_file_error("g_idx names group 9 of 4"), ErrorKind.MODEL_FILE),
        (MemoryError(), ErrorKind.RESOURCE),
        (ValueError("cannot reshape"), ErrorKind.INTERNAL),
    ],
)
def test_an_error_ends_waiting_steps_and_later_ones_with_the_tensor_s_name(
    error: Exception, kind: ErrorKind
) -> None:
    name = "layers.1.attn.o.weight"
    source = Source(TENSORS, held=name)
    source.fails[name] = error
    backend = load(source)
    driver = BackendDriver(backend)
    step = submit(driver)
    assert source.arrived.wait(SECONDS) and not step.done(0.05)
    source.go_on.set()
    for waiting in (step, submit(driver)):
        with pytest.raises(TidemillError, match=r"layers\.1\.attn\.o\.weight") as caught:
            waiting.result()
        assert caught.value.kind is kind and caught.value.param == name
    told = wait_loaded(backend)
    assert told is not None and told.kind is kind and name in told.message
    assert source.read[-1] != "lm_head.weight"
    backend.close()


def test_closing_ends_packing_and_a_step_that_waits() -> None:
    source = Source(TENSORS, held="layers.1.mlp.up.weight")
    backend = load(source)
    told: list[object] = []
    backend.when_loaded(told.append)
    step = submit(BackendDriver(backend))
    assert source.arrived.wait(SECONDS)
    closing = threading.Thread(target=backend.close)
    closing.start()
    source.go_on.set()  # it cannot be interrupted while it reads, and does not go on behind that
    closing.join(SECONDS)
    assert not closing.is_alive()
    with pytest.raises(TidemillError, match="closed"):
        step.result()
    assert told == [] and source.read[-1] == "layers.1.mlp.up.weight"


def test_stopping_fails_a_step_that_waits_at_once() -> None:
    source = Source(TENSORS, held="layers.1.mlp.up.weight")
    backend = load(source)
    driver = BackendDriver(backend)
    step = submit(driver)
    assert source.arrived.wait(SECONDS)
    backend.stop_loading()
    for waiting in (step, submit(driver)):
        with pytest.raises(TidemillError, match="closed") as caught:
            waiting.result()
        assert caught.value.kind is ErrorKind.UNAVAILABLE
    source.go_on.set()
    backend.close()


def test_progress_shows_that_reading_gets_on() -> None:
    source = Source(TENSORS, held="layers.0.attn.k.weight")
    backend = load(source)
    assert source.arrived.wait(SECONDS)
    seen = {backend.progress() for _ in range(3)}
    assert len(seen) == 3
    source.go_on.set()
    assert wait_loaded(backend) is None
    assert backend.progress() == backend.progress() > max(seen)
    backend.close()


def test_memory_that_is_promised_is_not_given_to_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(TENSORS, held="layers.0.attn.q.weight")
    backend = load(source)
    assert source.arrived.wait(SECONDS)
    need = 4 * backend.options.block_size * SPEC.kv_bytes_per_token(backend.options.kv_dtype)
    left = need + backend.memory().promised_bytes - 1
    monkeypatch.setattr("tidemill.backends.native.backend.free_memory", lambda: left)
    with pytest.raises(TidemillError, match="KV cache"):
        backend.allocate_cache((4,), states=0)
    source.go_on.set()
    assert wait_loaded(backend) is None
    backend.allocate_cache((4,), states=0)
    backend.close()
