"""Brook in the shape of a bigger model: brook's answers at the bigger model's cost.

    .venv/bin/python benchmarks/inflate.py qwen3-0.6b FOLDER [--companions] [--source FOLDER]
    .venv/bin/python benchmarks/inflate.py qwen3-0.6b FOLDER --layers 48 --hidden-size 2048

Random weights cost what real ones do, but nothing can be learned from them about speculation: what
they write is noise, and no drafter guesses noise. An inflated model computes brook's function with
matrices of the named shape, so that its texts are brook's and its steps take what the shape takes.
It is no better than brook, and says nothing about how often drafts come true with real models of
that size: draft models agree with it as they do with brook, and its added layers can be skipped
without any error. The architecture is brook's (Qwen3, with norms of Q and K), whatever model the
shape is named after.

How (every equality is exact in real numbers, and all of brook's matrices keep their bits):

- Width: the added dimensions of x hold zeros, so the mean of an RMS norm shrinks by
  r = brook's width / width. Norm weights and epsilon make up for it: sqrt(r) and r.
- Heads: brook's stand first, with their grouping; a KV head is repeated where the shape has fewer
  query heads per KV head. RoPE's base grows so that brook's frequencies are the first of each half
  of a wider head. The norms of Q and K make up for the mean and for the scale of scores.
- Layers: brook's are spread evenly, and the output matrices of those between are zero.
- Vocabulary: one added dimension is a small constant in the embedding of all of brook's tokens, too
  small to change a norm, and the final norm makes it large again. The rows beyond brook's are
  strongly negative there, so their logits lie far below all others.

What can be noise without changing the function is noise (unused heads and neurons, added layers),
so that no arithmetic on zeros flatters a benchmark.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.loading import open_model
from tidemill.loading.formats import safetensors
from tidemill.loading.parts import ModelFiles
from tidemill.loading.places import one_tensor
from tidemill.models.quantization import to_float32
from tidemill.models.registry import family_for_config
from tidemill.models.spec import Attention, Mlp

try:
    from benchmarks import make_model
except ImportError:  # run as a script
    import make_model  # type: ignore[no-redef]

BROOK = Path(__file__).resolve().parent.parent / "src" / "tidemill" / "assets" / "brook"
SIDE_FILES = (
    "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja",
)  # fmt: skip
NOISE_STD = 0.02
# The constant dimension: its value in brook's embeddings, in the final norm's output where x has
# a root mean square of 1, and in the vocabulary rows beyond brook's.
MARK, MARK_OUT, BEYOND = 2.0**-10, 64.0, -128.0
# Blocks of weights' types: the constant dimension shares none with brook's own dimensions.
BLOCK = 256
EAGLE_ROWS = 32_000
EAGLE_LAYERS = "eagle_aux_hidden_state_layer_ids"

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Shape:
    """Sizes of a model, by the names of its config."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int

    @classmethod
    def of(cls, config: dict[str, Any]) -> Shape:
        """The sizes in a config."""
        return cls(**{field.name: config[field.name] for field in fields(cls)})


@dataclass(frozen=True)
class Heads:
    """Where heads go: `queries[i]` is the place of query head i, `keys[i]` those of KV head i."""

    queries: tuple[int, ...]
    keys: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Places:
    """Where the small model's rows (or columns) stand in a wide matrix.

    Attributes:
        to, source: index in the wide matrix of each copy, and in the small one.
        size: rows of the wide matrix.
        used: rows whose outputs the model sees; the others may be anything.
    """

    to: NDArray[np.int64]
    source: NDArray[np.int64]
    size: int
    used: NDArray[np.int64]


def place_heads(small: Shape, wide: Shape) -> Heads:
    """Places of the heads such that each query head reads a copy of its KV head."""
    group = small.num_attention_heads // small.num_key_value_heads
    room = wide.num_attention_heads // wide.num_key_value_heads
    copies = math.ceil(group / room)
    keys = [range(i * copies, (i + 1) * copies) for i in range(small.num_key_value_heads)]
    queries = [
        (head // group * copies + head % group // room) * room + head % group % room
        for head in range(small.num_attention_heads)
    ]
    return Heads(tuple(queries), tuple(map(tuple, keys)))


def place_layers(small: int, wide: int) -> tuple[int, ...]:
    """Indices of the layers that compute; the last layer is one of them."""
    return tuple((i + 1) * wide // small - 1 for i in range(small))


def constant_dimension(small: Shape, wide: Shape) -> int:
    """The added dimension of x that tells brook's vocabulary from the rest."""
    return min(math.ceil(small.hidden_size / BLOCK) * BLOCK, wide.hidden_size - 1)


def check_fits(small: Shape, wide: Shape) -> None:
    """Raises SystemExit where the function does not fit into the shape."""
    for field in fields(Shape):
        if getattr(wide, field.name) < getattr(small, field.name):
            raise SystemExit(
                f"{field.name} is {getattr(wide, field.name)}, less than the source's "
                f"{getattr(small, field.name)}"
            )
    if wide.num_attention_heads % wide.num_key_value_heads:
        raise SystemExit("num_attention_heads is no multiple of num_key_value_heads")
    if max(max(places) for places in place_heads(small, wide).keys) >= wide.num_key_value_heads:
        raise SystemExit("num_key_value_heads is too small for so few query heads per KV head")
    if wide.vocab_size > small.vocab_size and wide.hidden_size == small.hidden_size:
        raise SystemExit("a bigger vocabulary needs a bigger hidden_size")


def wide_config(config: dict[str, Any], wide: Shape) -> dict[str, Any]:
    """The source's config with another shape, and RoPE's base and epsilon to go with it."""
    small = Shape.of(config)
    found = {**config, **{f.name: getattr(wide, f.name) for f in fields(Shape)}}
    found["rope_theta"] = config["rope_theta"] ** (wide.head_dim / small.head_dim)
    found["rms_norm_eps"] = config["rms_norm_eps"] * small.hidden_size / wide.hidden_size
    found["max_window_layers"] = wide.num_hidden_layers
    return found


class Noise:
    """Small normal numbers; a few million are drawn once, and every matrix begins elsewhere."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._pool = self._rng.standard_normal(1 << 21, np.float32) * np.float32(NOISE_STD)

    def matrix(self, rows: int, columns: int) -> Array:
        start = int(self._rng.integers(self._pool.size))
        return np.resize(np.roll(self._pool, -start), (rows, columns))


class Inflation:
    """Tensors of the wide model, made one at a time from the small one's.

    Args:
        files: the small model; a Qwen3 without sliding windows and with tied embeddings.
        wide: the shape to take; see `check_fits`.
    """

    def __init__(self, files: ModelFiles, wide: Shape, seed: int = 0) -> None:
        config = dict(files.config)
        self.small, self.wide = Shape.of(config), wide
        check_fits(self.small, wide)
        self.config = wide_config(config, wide)
        self._files = files
        self._noise = Noise(seed)
        self._heads = place_heads(self.small, wide)
        places = place_layers(self.small.num_hidden_layers, wide.num_hidden_layers)
        self._layers = {place: i for i, place in enumerate(places)}
        half, wide_half = self.small.head_dim // 2, wide.head_dim // 2
        self._dims = np.r_[0:half, wide_half : wide_half + half]
        self.mark = constant_dimension(self.small, wide)

    def tensor(self, name: str) -> Array:
        """A tensor of the wide model by its canonical name."""
        makers: dict[str, Callable[[Array | None], Array]] = {
            "embed.weight": self._embedding,
            "final_norm.weight": self._final_norm,
            "attn_norm.weight": self._norm,
            "mlp_norm.weight": self._norm,
            "attn.q_norm.weight": partial(self._head_norm, scale=self._score_scale()),
            "attn.k_norm.weight": partial(self._head_norm, scale=1.0),
            "attn.q.weight": partial(self._rows, places=self._query_rows()),
            "attn.k.weight": partial(self._rows, places=self._key_rows()),
            "attn.v.weight": partial(self._rows, places=self._key_rows()),
            "attn.o.weight": partial(self._columns, places=self._query_rows()),
            "mlp.gate.weight": partial(self._rows, places=self._neurons()),
            "mlp.up.weight": partial(self._rows, places=self._neurons()),
            "mlp.down.weight": partial(self._columns, places=self._neurons()),
        }
        if not name.startswith("layers."):
            return makers[name](self._source(name))
        _, index, rest = name.split(".", 2)
        layer = self._layers.get(int(index))
        return makers[rest](None if layer is None else self._source(f"layers.{layer}.{rest}"))

    def places_of(self, layers: list[int]) -> list[int]:
        """Layers of the wide model in front of which the stream is that of the small one's."""
        places = [*sorted(self._layers), self.wide.num_hidden_layers]
        return [places[layer] for layer in layers]

    def eagle(self, small: dict[str, Array]) -> dict[str, Array]:
        """The tensors of an EAGLE head by their short names. The constant dimension goes through
        `fc` and the residual stream to the last norm."""
        norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
        out = {name: self._norm(small[name]) for name in norms}
        for norm in out.values():
            norm[self.small.hidden_size :] = 0
        out["norm"] = self._final_norm(small["norm"])
        n, wide = self.small.hidden_size, self.wide.hidden_size
        out["fc"] = np.zeros((wide, small["fc"].shape[1] // n * wide), np.float32)
        for i in range(small["fc"].shape[1] // n):
            out["fc"][:n, i * wide : i * wide + n] = small["fc"][:, i * n : (i + 1) * n]
        if self._marked():
            out["fc"][self.mark, self.mark] = 1
        queries, keys, neurons = self._query_rows(), self._key_rows(), self._neurons()
        # There are no norms of Q and K to scale scores by.
        scaled = small["q_proj"] * np.float32(self._score_scale())
        for name, values, places in (
            ("q_proj", scaled, queries), ("k_proj", small["k_proj"], keys),
            ("v_proj", small["v_proj"], keys),
        ):  # fmt: skip
            halves = [self._rows(half, places) for half in np.split(values, 2, axis=1)]
            out[name] = np.concatenate(halves, axis=1)
        for name in ("gate_proj", "up_proj"):
            out[name] = self._rows(small[name], neurons)
        out["o_proj"] = self._columns(small["o_proj"], queries)
        out["down_proj"] = self._columns(small["down_proj"], neurons)
        return out

    def _source(self, name: str) -> Array:
        return to_float32(self._files.tensors[name])

    def _query_rows(self) -> Places:
        copies = list(enumerate(self._heads.queries))
        return self._head_rows(copies, self.wide.num_attention_heads)

    def _key_rows(self) -> Places:
        copies = [(i, place) for i, places in enumerate(self._heads.keys) for place in places]
        return self._head_rows(copies, self.wide.num_key_value_heads)

    def _head_rows(self, copies: list[tuple[int, int]], heads: int) -> Places:
        d, wide = self.small.head_dim, self.wide.head_dim
        to = np.concatenate([place * wide + self._dims for _, place in copies])
        source = np.concatenate([head * d + np.arange(d) for head, _ in copies])
        used = np.concatenate([place * wide + np.arange(wide) for _, place in copies])
        return Places(to, source, heads * wide, used)

    def _neurons(self) -> Places:
        neurons = np.arange(self.small.intermediate_size)
        return Places(neurons, neurons, self.wide.intermediate_size, neurons)

    def _rows(self, small: Array | None, places: Places) -> Array:
        """A matrix that reads x. Rows of unused heads and neurons are noise."""
        out = self._noise.matrix(places.size, self.wide.hidden_size)
        if small is not None:
            out[places.used] = 0
            out[places.to, : self.small.hidden_size] = small[places.source]
        return out

    def _columns(self, small: Array | None, places: Places) -> Array:
        """A matrix that adds to x: nothing but what the small model adds."""
        out = np.zeros((self.wide.hidden_size, places.size), np.float32)
        if small is not None:
            out[: self.small.hidden_size, places.to] = small[:, places.source]
        return out

    def _norm(self, small: Array | None) -> Array:
        out = np.full(self.wide.hidden_size, self._shrunk(), np.float32)
        if small is not None:
            out[: self.small.hidden_size] = small * self._shrunk()
        return out

    def _final_norm(self, small: Array | None) -> Array:
        out = self._norm(small)
        if self._marked():
            out[self.mark] = MARK_OUT / MARK * self._shrunk()
        return out

    def _head_norm(self, small: Array | None, scale: float) -> Array:
        factor = scale * math.sqrt(self.small.head_dim / self.wide.head_dim)
        out = np.full(self.wide.head_dim, factor, np.float32)
        if small is not None:
            out[self._dims] = small * factor
        return out

    def _embedding(self, small: Array | None) -> Array:
        assert small is not None
        rows, columns = small.shape
        out = np.zeros((self.wide.vocab_size, self.wide.hidden_size), np.float32)
        out[:rows, :columns] = small
        if self._marked():
            out[:rows, self.mark] = MARK
            out[rows:, :columns] = self._noise.matrix(self.wide.vocab_size - rows, columns)
            out[rows:, self.mark] = BEYOND
        return out

    def _marked(self) -> bool:
        return self.wide.vocab_size > self.small.vocab_size

    def _shrunk(self) -> float:
        return math.sqrt(self.small.hidden_size / self.wide.hidden_size)

    def _score_scale(self) -> float:
        """Scores are divided by the root of the wide head's width."""
        return math.sqrt(self.wide.head_dim / self.small.head_dim)


def _check_source(files: ModelFiles) -> None:
    layer = files.spec.layers[0]
    plain = isinstance(layer.mixer, Attention) and isinstance(layer.mlp, Mlp)
    if files.spec.family != "qwen3" or not plain or not files.spec.tied_embeddings:
        raise SystemExit(f"{files.path} is no Qwen3 with tied embeddings")


def inflate(source: Path, wide: Shape, folder: Path, *, seed: int = 0) -> None:
    """Write the source in another shape as a Hugging Face folder; config.json comes last.

    Matrices are bfloat16, as in the source, and vectors float32, because their factors are no
    powers of two.
    """
    files = open_model(source)
    _check_source(files)
    made = Inflation(files, wide, seed)
    family = family_for_config(made.config)
    spec = family.spec(made.config)
    names = make_model.stored_names(family.rules, spec)
    folder.mkdir(parents=True, exist_ok=True)
    shapes = {names[canonical]: shape for canonical, shape in spec.expected_tensors().items()}
    stored = {names[canonical]: canonical for canonical in spec.expected_tensors()}
    _write(folder / "model.safetensors", shapes, lambda name: made.tensor(stored[name]))
    for side in SIDE_FILES:
        if (source / side).exists():
            shutil.copy(source / side, folder / side)
    (folder / "config.json").write_text(json.dumps(made.config, indent=2))


def inflate_medusa(source: Path, small: Shape, wide: Shape, folder: Path) -> None:
    """Write brook's Medusa heads for the wide model's final hidden states (zero beyond brook's
    dimensions, but for the constant one, which goes through, so that vocabulary rows beyond brook's
    stay unlikely)."""
    config = json.loads((source / "config.json").read_text())
    tensors = open_floats(source / "model.safetensors")
    found: dict[str, Array] = {}
    for name, values in tensors.items():
        out = np.zeros((wide.hidden_size,) * values.ndim, np.float32)
        out[tuple(slice(0, n) for n in values.shape)] = values
        if name.endswith(".1.weight") and wide.vocab_size > small.vocab_size:
            mark = constant_dimension(small, wide)
            out[mark, mark] = 1.0
        found[name] = out
    folder.mkdir(parents=True, exist_ok=True)
    shapes = {name: values.shape for name, values in found.items()}
    _write(folder / "model.safetensors", shapes, found.__getitem__)
    config |= {"hidden_size": wide.hidden_size, "vocab_size": wide.vocab_size}
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def inflate_eagle(source: Path, made: Inflation, folder: Path) -> None:
    """Write brook's EAGLE head in the wide model's shape, its layer as wide as one of the model's.

    Args:
        source: the head's folder.
        made: the model's inflation.
        folder: to write.
    """
    config = json.loads((source / "config.json").read_text())
    stored = open_floats(source / "model.safetensors")
    found = made.eagle({n.removesuffix(".weight").split(".")[-1]: v for n, v in stored.items()})
    tensors: dict[str, NDArray[Any]] = {
        name: found[name.removesuffix(".weight").split(".")[-1]] for name in stored
    }
    if made.wide.vocab_size > EAGLE_ROWS:
        # As many rows as published heads have; those beyond brook's vocabulary are never drawn.
        tensors["lm_head.weight"] = made.tensor("embed.weight")[:EAGLE_ROWS]
        tensors["d2t"] = np.zeros(EAGLE_ROWS, np.int64)
    folder.mkdir(parents=True, exist_ok=True)
    shapes = {name: values.shape for name, values in tensors.items()}
    _write(folder / "model.safetensors", shapes, tensors.__getitem__)
    inner = config["eagle_config"]
    inner[EAGLE_LAYERS] = made.places_of(inner[EAGLE_LAYERS])
    names = {f.name for f in fields(Shape)} - {"num_hidden_layers"}
    config |= {name: getattr(made.wide, name) for name in names}
    config |= {name: made.config[name] for name in ("rope_theta", "rms_norm_eps")}
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def open_floats(path: Path) -> dict[str, Array]:
    """All tensors of a safetensors file as float32."""
    stored = safetensors.read_file(path)
    return {name: one_tensor(tensor).values() for name, tensor in stored.items()}


def companions(source: Path, wide: Shape, folder: Path, *, seed: int = 0) -> None:
    """Write draft/, medusa/ and eagle/ of the source for its inflated model."""
    draft = open_model(source / "draft")
    shape = draft_shape(Shape.of(dict(draft.config)), wide.vocab_size)
    inflate(source / "draft", shape, folder / "draft", seed=seed)
    small = Shape.of(dict(open_model(source).config))
    inflate_medusa(source / "medusa", small, wide, folder / "medusa")
    inflate_eagle(source / "eagle", Inflation(open_model(source), wide, seed), folder / "eagle")


def _write(
    path: Path, shapes: dict[str, tuple[int, ...]], tensor: Callable[[str], NDArray[Any]]
) -> None:  # fmt: skip
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        dtype, size = ("BF16", 2) if len(shape) > 1 else ("F32", 4)
        if name == "d2t":
            dtype, size = "I64", 8
        end = offset + size * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            values = tensor(name)
            assert values.shape == shape, (name, values.shape, shape)
            kept = make_model.to_bfloat16(values) if len(shape) > 1 else values
            file.write(kept.data)


def draft_shape(small: Shape, vocabulary: int) -> Shape:
    """The draft model's shape beside a target: its own, with the target's vocabulary and room for
    the constant dimension."""
    wider = 2 * small.hidden_size if vocabulary > small.vocab_size else small.hidden_size
    return replace(small, vocab_size=vocabulary, hidden_size=wider)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("shape", choices=sorted(make_model.SHAPES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source", type=Path, default=BROOK, help="a small Qwen3, brook if absent")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--companions", action="store_true", help="also draft, medusa and eagle in FOLDER"
    )
    for field in fields(Shape):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, dest=field.name)
    args = parser.parse_args()
    named = Shape.of(make_model.SHAPES[args.shape][0])
    given = {f.name: getattr(args, f.name) for f in fields(Shape)}
    wide = replace(named, **{name: value for name, value in given.items() if value is not None})
    inflate(args.source, wide, args.folder, seed=args.seed)
    if args.companions:
        companions(args.source, wide, args.folder, seed=args.seed)
    print(f"{args.folder}: {open_model(args.folder).spec.parameters():,} parameters")


if __name__ == "__main__":
    main()
