"""`tidemill show`: a summary of a model's files, without loading its weights."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from tidemill.cli import options
from tidemill.cli.acting import JSON
from tidemill.cli.declared import option

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console
    from rich.table import Table

    from tidemill.contract.needs import MemoryNeeds
    from tidemill.library.manifest import Definition
    from tidemill.models.foreign import Foreign
    from tidemill.models.spec import Attention, DecoderSpec, Mlp, Moe
    from tidemill.offline.opened import OpenedModel
    from tidemill.offline.opened_text import OpenedText


def show(
    model: str | None = options.MODEL,
    file: str | None = options.FILE,
    revision: str | None = options.REVISION,
    tensors: bool = option(False, help="List every tensor instead of groups."),
    as_json: bool = JSON,
) -> None:
    """Show a model: its shape, tensors, tokenizer, and the memory its context takes."""
    from rich.console import Console

    from tidemill.cli.acting import print_json
    from tidemill.cli.show_json import model_document, vocabulary_document
    from tidemill.library.locate import locate
    from tidemill.loading.hub_name import with_options
    from tidemill.loading.kind import vocabulary_alone
    from tidemill.offline.opened import OpenedModel
    from tidemill.offline.opened_text import OpenedText

    found = locate(with_options(model, file, revision), _say)
    path, name = found.path, found.name
    console = Console(width=None if _is_terminal() else 120, highlight=False)
    if path.is_file() and vocabulary_alone(path):
        text = OpenedText.open(path)
        if as_json:
            print_json(vocabulary_document(path, text))
            return
        console.print(_table([("model", f"none: a vocabulary alone ({path})"), *_text_facts(text)]))
        _print_notes(console, text.tokenizer.notes)
        return
    opened = OpenedModel.of(path, name, "auto")
    needs = _needs(opened, found.definition)
    if as_json:
        print_json(model_document(opened, needs))
        return
    if found.digest is not None:
        console.print(_library_facts(name))
        console.print()
    console.print(_facts(opened))
    console.print()
    console.print(_kv_table(opened))
    console.print()
    console.print(_memory_table(needs))
    console.print()
    console.print(_tensor_table(opened, grouped=not tensors))
    _print_notes(console, (*opened.files.notes, *opened.text.tokenizer.notes))


def _library_facts(name: str) -> Table:
    """What the library says of a model: its source, and what was set when it was created."""
    import time

    from tidemill.library.catalog import Library

    manifest = Library.open().manifest(name)
    defined = manifest.definition
    licence = (manifest.licence or "not said").splitlines()[0]
    revision = f" ({manifest.revision})" if manifest.revision else ""
    rows = [
        ("name", f"{manifest.name}, id {manifest.digest[:12]}"),
        ("source", manifest.source + revision),
        ("added", time.strftime("%Y-%m-%d %H:%M", time.localtime(manifest.created))),
        ("licence", licence),
        ("created from", manifest.base or ""),
        ("system", defined.system or ""),
        ("messages", "\n".join(f"{m['role']}: {m['content']}" for m in defined.messages)),
        ("parameters", ", ".join(f"{k} {v}" for k, v in defined.sampling.items())),
        ("context", f"{defined.max_model_len:,} tokens" if defined.max_model_len else ""),
        ("chat template", "of its own" if defined.chat_template is not None else ""),
        ("adapters", ", ".join((*defined.adapters, *(file.path for file in manifest.adapter)))),
        ("quantize", defined.quantize or ""),
    ]
    return _table((label, value) for label, value in rows if value)


def _print_notes(console: Console, notes: Iterable[str]) -> None:
    for note in notes:
        console.print(f"note: {note}", markup=False)


def _say(line: str) -> None:
    import sys

    print(line, file=sys.stderr)


def _is_terminal() -> bool:
    import sys

    return sys.stdout.isatty()


def _heads(mixer: Attention) -> str:
    if mixer.latent is None:
        return f"{mixer.heads} heads, {mixer.kv_heads} KV heads of {mixer.head_dim}"
    latent = mixer.latent
    return f"{mixer.heads} heads on latents of {latent.rank}, {latent.rope} values beside rotate"


def _facts(opened: OpenedModel) -> Table:
    from tidemill.cli.machine import human_bytes

    files, spec, text = opened.files, opened.files.spec, opened.text
    eos = ", ".join(f"{i} {text.tokenizer.id_to_token(i)!r}" for i in files.eos_token_ids)
    output = f", output layer {spec.vocab_size:,}" + (", tied" if spec.tied_embeddings else "")
    rows = [
        ("model", f"{text.name} ({files.format}, {files.path})"),
        ("weights", f"{human_bytes(files.file_bytes)}, mostly {spec.weights_dtype}"),
        *_conversions(opened),
        *_purpose(opened),
        *(_shape(spec) if spec.foreign is None else _foreign(opened, spec.foreign)),
        ("context", _context(spec)),
        *_text_facts(text, output if spec.generates else ""),
        ("end tokens", eos or "none"),
    ]
    return _table(rows)


def _table(rows: Iterable[tuple[str, str]]) -> Table:
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for name, value in rows:
        table.add_row(f"[bold]{name}[/bold]", _escaped(value))
    return table


def _text_facts(text: OpenedText, output: str = "") -> list[tuple[str, str]]:
    """Tokenizer and chat template rows; `output` describes the output layer."""
    special = text.tokenizer.special
    roles = ", ".join(f"{role.removesuffix('_token')} {special[role]!r}" for role in special)
    defaults = ", ".join(f"{k} {v:g}" for k, v in text.defaults.items())
    return [
        ("vocabulary", f"{text.tokenizer.vocab_size:,} tokens{output}"),
        ("special tokens", roles or "none"),
        ("chat template", "present" if text.template.exists else "none"),
        ("sampling defaults", defaults or "none stated"),
    ]


def _purpose(opened: OpenedModel) -> list[tuple[str, str]]:
    """Embeddings or scores that a model computes, in addition to text or instead of it."""
    vectors = opened.files.vectors
    if opened.files.spec.generates and not vectors.source and not vectors.head:
        return []
    made = "scores of pairs" if vectors.head == "score" else f"vectors, by {vectors.pooling}"
    only = "" if opened.files.spec.generates else "; it generates no text"
    return [("made for", made + only)]


def _conversions(opened: OpenedModel) -> list[tuple[str, str]]:
    """Weights whose stored type has no kernel, with the type they are converted to."""
    from collections import Counter

    from tidemill.loading.lazy import Holding
    from tidemill.models.quantization import stored_type

    if opened.files.spec.foreign is not None:
        return []
    tensors = opened.files.tensors.held(Holding(wide=False))
    kinds: Counter[tuple[str, str]] = Counter()
    for name, place in tensors.places.items():
        held = stored_type(name, tensors.header(name), "none")
        if held != place.dtype and len(place.shape) > 1:
            kinds[place.dtype, held] += 1
    said = ", ".join(f"{count} from {stored} in {held}" for (stored, held), count in kinds.items())
    return [("held as", said)] if said else []


def _context(spec: DecoderSpec) -> str:
    reach, trained = spec.reach, spec.max_positions
    said = f"{reach.usual:,} tokens"
    if reach.usual > trained:
        return f"{said} ({trained:,} stretched by rope scaling)"
    if reach.longest > trained:
        return f"{said}; up to {reach.longest:,} with --max-model-len (dynamic rope scaling)"
    return said


def _shape(spec: DecoderSpec) -> list[tuple[str, str]]:
    """Rows on the architecture of a model that a family describes."""
    attentions = list(spec.attentions().values())
    mlp = next((layer.mlp for layer in spec.layers if layer.mlp is not None), None)
    attention = attentions[0] if attentions else None
    windows = sorted({a.window for a in attentions if a.window is not None})
    rope = attention.rope if attention else None
    scaling = f", {rope.scaling.kind} scaling" if rope and rope.scaling else ""
    return [
        ("family", spec.family),
        ("parameters", f"{spec.parameters():,}"),
        ("layers", f"{len(spec.layers)} of width {spec.hidden_size}"),
        (
            "attention",
            "none"
            if attention is None
            else _heads(attention)
            + (", QK norm" if attention.qk_norm else "")
            + (", biases" if attention.q_bias else "")
            + (f", window {windows}" if windows else ""),
        ),
        ("rope", f"theta {rope.theta:g}{scaling}" if rope else "none"),
        ("feed-forward", "none" if mlp is None else _feed_forward(mlp)),
    ]


def _foreign(opened: OpenedModel, foreign: Foreign) -> list[tuple[str, str]]:
    """Rows for a model that no family describes."""
    places = opened.files.tensors.places.values()
    stored = sum(math.prod(place.shape) for place in places)
    return [
        ("architecture", f"{foreign.architecture}, which no family describes"),
        ("backend", "transformers: slow, and KV sizes are estimates until it is loaded"),
        ("parameters", f"{stored:,}, as stored"),
    ]


def _feed_forward(mlp: Mlp | Moe) -> str:
    from tidemill.models.spec import Moe

    if isinstance(mlp, Moe):
        shared = ", and a shared one" if mlp.shared else ""
        return f"{mlp.top_k} of {mlp.experts} experts{shared}; each {_feed_forward(mlp.expert)}"
    return f"{'gated' if mlp.gated else 'plain'} {mlp.activation}, {mlp.intermediate} wide"


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _kv_table(opened: OpenedModel) -> Table:
    from rich.table import Table

    from tidemill.cli.machine import human_bytes
    from tidemill.contract.config import KV_DTYPES

    spec = opened.files.spec
    kinds = KV_DTYPES[1:]  # all but auto
    table = Table(title="KV cache", title_justify="left", box=None)
    table.add_column("type")
    table.add_column("bytes per token", justify="right")
    table.add_column("full context", justify="right")
    for kv_dtype in kinds if spec.foreign is None else kinds[:1]:
        keeps = spec.foreign is not None or spec.cached()
        size = spec.kv_bytes_per_token(kv_dtype) if keeps else 0
        table.add_row(kv_dtype, f"{size:,}", human_bytes(size * spec.reach.usual))
    return table


def _needs(opened: OpenedModel, defined: Definition) -> MemoryNeeds | str:
    """What an engine takes, of default settings but for the library's (see worker/needs.py), or
    why these cannot be: `run` and `serve` refuse them, too."""
    from tidemill.base.errors import TidemillError
    from tidemill.contract.config import EngineConfig
    from tidemill.worker.needs import needs_of
    from tidemill.worker.opening import of_files

    config = EngineConfig(
        model=str(opened.files.path),
        served_name=opened.text.name,
        max_model_len=defined.max_model_len,
        quantize=defined.quantize or "none",
    )
    try:
        return needs_of(config, of_files(config, opened.files))
    except TidemillError as error:
        return error.message


def _memory_table(needs: MemoryNeeds | str) -> Table:
    from rich.table import Table

    from tidemill.cli.machine import human_bytes

    if isinstance(needs, str):
        return _table([("memory", f"it cannot be loaded: {needs}")])
    rows = [(f"weights: {part}", size) for part, size in needs.weights.items()]
    rows += [
        ("all weights", needs.weight_bytes),
        *([("of them read in the file, row by row", needs.file_rows)] if needs.file_rows else []),
        *([("two recurrent states of a sequence", 2 * needs.state)] if needs.state else []),
        (f"a step of {options.MAX_STEP_TOKENS.default} tokens", needs.step + needs.tables),
        ("logits of each sequence in it", needs.sequence),
        ("process", needs.process),
        (f"all, for one request of {needs.context:,} tokens", needs.total(sequences=1)),
    ]
    title = f"Memory ({needs.backend}, {needs.dtype}, KV cache {needs.kv_dtype})"
    table = Table(title=title, title_justify="left", box=None, show_header=False)
    table.add_column("what")
    table.add_column("bytes", justify="right")
    for what, size in rows:
        table.add_row(what, human_bytes(size))
    return table


def _tensor_table(opened: OpenedModel, *, grouped: bool) -> Table:
    from rich.table import Table

    from tidemill.cli.machine import human_bytes

    groups: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}
    for name, place in opened.files.tensors.places.items():
        shown = re.sub(r"^layers\.\d+\.", "layers.*.", name) if grouped else name
        groups.setdefault((shown, place.dtype, place.shape), []).append(place.nbytes)
    table = Table(title="Tensors", title_justify="left", box=None)
    table.add_column("name")
    table.add_column("type")
    table.add_column("shape")
    table.add_column("count", justify="right")
    table.add_column("bytes", justify="right")
    for (name, dtype, shape), sizes in groups.items():
        dims = " x ".join(map(str, shape))
        table.add_row(_escaped(name), dtype, dims, str(len(sizes)), human_bytes(sum(sizes)))
    return table
