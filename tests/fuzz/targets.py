"""What is fuzzed: for each kind of file a corpus, a mutation, and the code that reads it."""

from __future__ import annotations

import io
import json
import random
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from helpers import packers, tiny_adapter, tiny_folder
from helpers.backend_driver import BackendDriver, options
from helpers.gguf_adapter import gguf_adapter
from safetensors.numpy import save

from fuzz.mutate import mutate_bytes, mutate_json
from tidemill.backends import native
from tidemill.backends.base import LOGITS_ALL
from tidemill.base.tokenizer_data import TokenizerData
from tidemill.loading import open_model, text_side
from tidemill.loading.adapters.source import open_adapter
from tidemill.loading.formats import safetensors, spm_file, torch_files
from tidemill.loading.formats.gguf import read_file as read_gguf
from tidemill.loading.locate import bundled_models
from tidemill.loading.parts import ModelFiles
from tidemill.loading.places import one_tensor
from tidemill.models.adapters import MAX_RANK
from tidemill.models.blocks.repack import Inexact
from tidemill.models.quantization import to_float32
from tidemill.text import template as templates
from tidemill.text.abilities import Abilities
from tidemill.text.bounds import Budget
from tidemill.text.template import ChatTemplate
from tidemill.text.tokenizer import Tokenizer
from tidemill.text.word_rules import WORD_RULES

FIXTURES = Path(__file__).parents[1] / "fixtures" / "gguf"
MAX_VALUES = 2**16
# Words, signs, numbers, line ends, what is not ASCII, a mark, and long runs for what backtracks.
_TEXT = "ab a'S the tide 1234\r\n\té\u0301 漢字<s></s> " + "a" * 300 + " " * 300


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of file.

    Attributes:
        name: for reports.
        share: of all inputs.
        make: a mutated input.
        read: reads it from a folder that is its own; raises TidemillError or returns.
        bounded: Python's allocations are bounded by the file's size.
        native: what is read as sound goes on into the C++ core.
    """

    name: str
    share: float
    make: Callable[[random.Random], bytes]
    read: Callable[[bytes, Path], None]
    bounded: bool = True
    native: bool = False


def _compute(files: ModelFiles) -> None:
    """The model in the native core: weights packed, a prompt and a token behind it."""
    spec = files.spec
    if not spec.causal or not spec.generates:
        return
    loaded = native.load(spec, files.tensors, options(max_positions=min(64, spec.max_positions)))
    try:
        ids = [i % spec.vocab_size for i in range(min(5, spec.max_positions))]
        BackendDriver(loaded, num_blocks=4).all_logits(ids, chunk=4)
    finally:
        loaded.close()


def _write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.unlink(missing_ok=True)  # a mapping of the last input may still be alive
    path.write_bytes(data)
    return path


def _values(tensors: dict[str, Any]) -> None:
    for tensor in list(tensors.values())[:4]:
        if int(np.prod(tensor.shape, dtype=object)) <= MAX_VALUES:
            place = one_tensor(tensor)
            try:
                with np.errstate(all="ignore"):
                    place.values()
                    place.packed()
            except Inexact:
                continue


def _of_bytes(corpus: list[bytes]) -> Callable[[random.Random], bytes]:
    return lambda rng: mutate_bytes(rng.choice(corpus), rng.choice(corpus), rng)


def _of_json(documents: list[Any]) -> Callable[[random.Random], bytes]:
    texts = [json.dumps(d).encode() for d in documents]

    def make(rng: random.Random) -> bytes:
        if rng.random() < 0.6:
            return mutate_json(rng.choice(documents), rng)
        return mutate_bytes(rng.choice(texts), rng.choice(texts), rng)

    return make


# --- safetensors, PyTorch's files ---


def _safetensors() -> Target:
    rng = np.random.default_rng(0)
    small = {"a": rng.standard_normal((3, 32)).astype(np.float32), "b": np.zeros(5, np.float16)}
    corpus = [save(small), save({"w": small["a"]})]

    def read(data: bytes, folder: Path) -> None:
        _values(safetensors.read_file(_write(folder, "m.safetensors", data)))

    return Target("safetensors headers", 0.15, _of_bytes(corpus), read)


def _torch() -> Target:
    import torch

    def saved(value: Any, **options: Any) -> bytes:
        written = io.BytesIO()
        torch.save(value, written, **options)
        return written.getvalue()

    state = {"a": torch.randn(3, 4), "b": torch.nn.Parameter(torch.zeros(2).bfloat16())}
    corpus = [saved(state), saved(torch.nn.Linear(2, 3).state_dict(), pickle_protocol=4)]
    pickles = []
    for data in corpus:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            pickles.append(archive.read(next(n for n in archive.namelist() if "data.pkl" in n)))

    def make(rng: random.Random) -> bytes:
        if rng.random() < 0.4:
            return mutate_bytes(rng.choice(corpus), rng.choice(corpus), rng)
        written = io.BytesIO()  # a mutated pickle in a sound archive
        with zipfile.ZipFile(written, "w") as archive:
            changed = mutate_bytes(rng.choice(pickles), rng.choice(pickles), rng)
            archive.writestr("archive/data.pkl", changed)
            for key in "01":
                archive.writestr(f"archive/data/{key}", bytes(64))
        return written.getvalue()

    def read(data: bytes, folder: Path) -> None:
        _values(torch_files.read_file(_write(folder, "m.bin", data)))

    return Target("PyTorch archives and pickles", 0.15, make, read)


# --- GGUF, vocabularies ---


def _gguf() -> Target:
    corpus = [
        (FIXTURES / f"{name}.gguf").read_bytes()
        for name in ("Llama-llama3-rope-q4_0", "Qwen3-q8_0", "Qwen2-f16")
    ]

    def read(data: bytes, folder: Path) -> None:
        path = _write(folder, "m.gguf", data)
        file = read_gguf(path)
        _values(file.tensors)
        files = open_model(path)
        if not tracemalloc.is_tracing():  # what is held then is no reading of headers
            _compute(files)

    return Target("GGUF headers", 0.2, _of_bytes(corpus), read, native=True)


def _gguf_vocabulary() -> Target:
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{b:02X}>" for b in range(8)),
        "▁",
        "a",
        "b",
        "ab",
        "▁ab",
    ]
    types = [2, 3, 3] + [6] * 8 + [1] * 5
    base = {
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.scores": [-float(i) for i in range(len(tokens))],
    }  # fmt: skip
    documents = [
        base | {"tokenizer.ggml.model": kind, "tokenizer.ggml.pre": "gpt-2",
                "tokenizer.ggml.merges": ["a b"], "tokenizer.chat_template": "{{ messages }}"}
        for kind in ("gpt2", "gemma4", "llama", "t5", "bert")
    ]  # fmt: skip

    def read(data: bytes, folder: Path) -> None:
        try:
            document = json.loads(data)
        except ValueError:
            return
        if isinstance(document, dict):
            Tokenizer(text_side.read_gguf(document)).encode(_TEXT)

    return Target("GGUF vocabularies", 0.05, _of_json(documents), read, bounded=False, native=True)


def _sentencepiece() -> Target:
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the tide turns the mill wheel"] * 20), model_writer=written,
        vocab_size=30, minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    corpus = [written.getvalue()]

    def read(data: bytes, folder: Path) -> None:
        metadata = spm_file.read_file(_write(folder, "tokenizer.model", data))
        Tokenizer(TokenizerData(gguf=metadata)).encode("the tide")

    return Target("SentencePiece models", 0.05, _of_bytes(corpus), read, bounded=False)


def _tokenizer_json() -> Target:
    brook = json.loads((bundled_models()["brook"] / "tokenizer.json").read_text())
    brook["model"]["vocab"] = dict(list(brook["model"]["vocab"].items())[:300])
    vocab = brook["model"]["vocab"]
    brook["model"]["merges"] = [
        m for m in brook["model"]["merges"]
        if all(p in vocab for p in (m if isinstance(m, list) else m.split(" ")))
        and "".join(m if isinstance(m, list) else m.split(" ")) in vocab
    ][:50]  # fmt: skip

    def read(data: bytes, folder: Path) -> None:
        Tokenizer(TokenizerData(tokenizer_json=data)).encode(_TEXT)

    documents = [brook]
    for name in ("llama-bpe", "gpt-4o", "exaone-moe"):  # their expressions, changed too
        splits = [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
             "invert": False}
            for pattern in WORD_RULES[name].patterns
        ]  # fmt: skip
        last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                "use_regex": False}  # fmt: skip
        cutter = {"type": "Sequence", "pretokenizers": [*splits, last]}
        documents.append(brook | {"pre_tokenizer": cutter})
    return Target("tokenizer.json", 0.05, _of_json(documents), read, bounded=False, native=True)


# --- folders ---


def _folder(
    name: str, share: float, file: str, documents: list[Any], quantized: Any = None
) -> Target:
    made: set[Path] = set()

    def read(data: bytes, folder: Path) -> None:
        home = folder / name.replace(" ", "_").replace("/", "_")
        if home not in made:
            tiny_folder.write_folder(home)
            if quantized is not None:
                _write(home, "model.safetensors", quantized)
            made.add(home)
        _write(home, file, data)
        files = open_model(home)
        for tensor in files.tensors.values():
            try:
                with np.errstate(all="ignore"):
                    _ = tensor.data
            except Inexact:
                continue
        _compute(files)

    return Target(name, share, _of_json(documents), read, bounded=False, native=True)


def _configs() -> Target:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32}  # fmt: skip
    documents = [
        {**tiny_folder.CONFIG, "architectures": [family + "ForCausalLM"], "rope_scaling": rope}
        for family in ("Llama", "Mistral", "Qwen2", "Qwen3")
    ]
    return _folder("config.json", 0.1, "config.json", documents)


def _quantized() -> Target:
    stored: dict[str, np.ndarray] = {}
    for name, value in tiny_folder.tensors().items():
        if "_proj" not in name:
            stored[name] = value
            continue
        parts, _ = packers.gptq(value, 4, 32)
        stored |= {name.removesuffix(".weight") + e: p for e, p in parts.items()}
    section = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
    other = [
        {"quant_method": "awq", "bits": 4, "version": "gemm"},
        {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}},
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        {"quant_method": "bitsandbytes"},
        {"quant_method": "hqq"},
        {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4},
    ]
    documents = [{**tiny_folder.CONFIG, "quantization_config": s} for s in (section, *other)]
    return _folder("quantized folders", 0.02, "config.json", documents, save(stored))


# --- adapters ---


def _adapters() -> Target:
    """LoRA in both formats, and prompt adapters. What is read as sound is loaded beside its base
    and computes five tokens, after which the base computes what it did before."""
    settings = {
        **tiny_adapter.SETTINGS, "rank_pattern": {"q_proj": 4}, "alpha_pattern": {"k_proj": 3},
        "use_rslora": False, "use_dora": False, "bias": "none", "init_lora_weights": True,
        "alora_invocation_tokens": None, "modules_to_save": None, "target_parameters": None,
    }  # fmt: skip
    prompt = {
        "peft_type": "PROMPT_TUNING", "num_virtual_tokens": 3, "token_dim": 32, "num_layers": 2,
        "num_attention_heads": 4, "num_transformer_submodules": 1, "prompt_tuning_init": "RANDOM",
    }  # fmt: skip
    prefix = {**prompt, "peft_type": "PREFIX_TUNING", "token_dim": 16, "num_attention_heads": 2}
    rng = np.random.default_rng(1)
    lora = save(tiny_adapter.adapter_tensors())
    tables = {
        width: save({"prompt_embeddings": rng.standard_normal((3, width)).astype(np.float32)})
        for width in (32, 64)
    }
    # Of each sound adapter its settings and its tensors.
    sound: list[tuple[dict[str, Any], bytes]] = [
        (settings, lora), (prompt, tables[32]), (prefix, tables[64]),
    ]  # fmt: skip
    gguf_file = gguf_adapter()
    base: list[tuple[ModelFiles, BackendDriver, np.ndarray]] = []

    def make(rng: random.Random) -> bytes:
        kind = rng.randrange(8)
        if kind == 7:
            return b"g" + mutate_bytes(gguf_file, lora, rng)
        config, tensors = rng.choice(sound)
        text = json.dumps(config).encode()
        if kind < 3:
            text = mutate_json(config, rng)
        elif kind == 3:
            text = mutate_bytes(text, text, rng)
        else:
            tensors = mutate_bytes(tensors, rng.choice(sound)[1], rng)
        return b"p" + len(text).to_bytes(4, "little") + text + tensors

    def read(data: bytes, folder: Path) -> None:
        if not base:
            files = open_model(tiny_folder.write_folder(folder / "base"))
            loaded = native.load(files.spec, files.tensors, options(max_positions=64))
            driver = BackendDriver(loaded, num_blocks=8)
            base.append((files, driver, driver.all_logits([1, 2, 3, 4, 5], chunk=4)))
        [(files, driver, before)] = base
        if data[:1] == b"g":
            path = _write(folder, "adapter.gguf", data[1:])
        else:
            path = folder / "adapter"
            path.mkdir(exist_ok=True)
            end = 5 + int.from_bytes(data[1:5], "little")
            _write(path, "adapter_config.json", data[5:end])
            _write(path, "adapter_model.safetensors", data[end:])
        adapter = open_adapter(path, files)
        assert adapter.rank <= MAX_RANK
        if adapter.of_prompt:
            return
        changes = adapter.changes(lambda name: to_float32(files.tensors[name]))
        driver.backend.load_adapter(0, changes)
        try:
            sequence = driver.sequence([1, 2, 3, 4, 5])
            inputs = driver.inputs([(sequence, 5)], logits=LOGITS_ALL)
            inputs.adapters = np.zeros(1, np.int32)
            driver.backend.submit(inputs).result()
            driver.free(sequence)
        finally:
            driver.backend.unload_adapter(0)
        assert np.array_equal(driver.all_logits([1, 2, 3, 4, 5], chunk=4), before)

    return Target("adapters", 0.1, make, read, bounded=False, native=True)


# --- templates ---

_TEMPLATES = [
    "{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}\n{% endfor %}",
    "{%- set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ ns.n }}"
    "{% endfor %}{% if add_generation_prompt %}<a>{% endif %}",
    "{% macro f(x) %}{{ x | tojson(indent=2) }}{% endmacro %}{{ f(messages) }}{{ tools }}",
    "{% for i in range(9) %}{% for j in range(9) %}{{ 'x' * 9 ~ loop.index }}{% endfor %}"
    "{% endfor %}",
    "{{ messages | map(attribute='content') | join(', ') | replace('a', 'bb') | upper }}",
    "{{ raise_exception('no') if messages[0].role == 'user' else strftime_now('%Y') }}",
    "{{ messages.__class__ }}{{ ''.__class__.__mro__ }}{{ cycler.__init__.__globals__ }}",
    "{{ '%1000000d' % 5 }}{{ 'a'.ljust(1000) }}{{ 2 ** 30 }}{{ (1, 2) * 40 }}",
    "{% for t in tools or [] %}{{ t.function | tojson }}{% endfor %}{% for m in messages %}"
    "{% generation %}{{ m.content ~ (m.role | safe) }}{% endgeneration %}{% for c in m.tool_calls "
    "or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}",
    "{{ range(9) | batch(2, 0) | list }}{{ range(9) | slice(2) | list }}{{ [1, 2] | sum }}"
    "{{ 'a b' | center(9) | truncate(5) | urlencode }}{{ messages | map('upper') | tojson }}",
]


def _templates() -> Target:
    # A render may take two seconds; here a twentieth, so that many can be tried.
    templates.Budget = lambda *_: Budget(0.05)  # type: ignore[assignment, misc]

    def read(data: bytes, folder: Path) -> None:
        template = ChatTemplate(data.decode("utf-8", "replace"), {"bos_token": "<s>"})
        text = template.render([{"role": "user", "content": "abc"}], [{"name": "t"}])
        assert "root:" not in text and "<class" not in text
        Abilities.of(template)

    corpus = [t.encode() for t in _TEMPLATES]
    return Target("chat templates", 0.13, _of_bytes(corpus), read, bounded=False)


def targets() -> list[Target]:
    """Every kind of file; the shares add up to one."""
    return [
        _safetensors(), _torch(), _gguf(), _gguf_vocabulary(), _sentencepiece(),
        _tokenizer_json(), _configs(), _quantized(), _templates(), _adapters(),
    ]  # fmt: skip
