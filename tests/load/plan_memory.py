"""What `tidemill plan` predicts beside what `serve` then takes; run by `make plan-memory`.

Random weights in real sizes and odd ones, made by transformers. A server gets the flags that the
plan had; as many prompts as the plan's KV cache holds fill it at once, and the proportional set
size that all its processes would have on a machine of their own is sampled meanwhile.
With --write, the table of docs/planning.md.

    PYTHONPATH=tests .venv/bin/python -m load.plan_memory [--case NAME ...] [--write]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from helpers.real_server import RealServer
from helpers.shared_data import SHARED_DATA

from tidemill.loading.formats import gguf
from tidemill.text.gguf_library import tokenizer_from_gguf

DOC = Path(__file__).resolve().parents[2] / "docs" / "planning.md"
BEGIN, END = "<!-- memory: begin -->", "<!-- memory: end -->"
MIB = 2**20
_VOCABULARIES = {32000: "llama-spm", 128256: "llama-bpe", 151936: "qwen2"}
_SAMPLE_SECONDS = 0.1


@dataclass(frozen=True)
class Shape:
    """A transformers model: class prefix, vocabulary's size and config values."""

    prefix: str
    vocab: int
    values: dict[str, Any] = field(default_factory=dict)
    dtype: str = "bfloat16"


@dataclass(frozen=True)
class Case:
    """A shape (None: brook), a context, requests at once, and flags of both commands."""

    shape: str | None
    context: int
    streams: int
    flags: tuple[str, ...] = ()
    gguf: str = ""


def _dims(hidden: int, inner: int, layers: int, heads: int, kv: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv,
        "max_position_embeddings": 16384, **more,
    }  # fmt: skip


SHAPES = {
    "llama": Shape("Llama", 32000, _dims(1024, 2816, 12, 16, 16)),
    "llama-f32": Shape("Llama", 32000, _dims(768, 2048, 8, 12, 4), "float32"),
    "llama-gqa": Shape("Llama", 128256, _dims(1024, 3072, 10, 16, 4, tie_word_embeddings=True)),
    "qwen3-0.6b": Shape(
        "Qwen3", 151936, _dims(1024, 3072, 28, 16, 8, head_dim=128, tie_word_embeddings=True)
    ),
    "qwen2-windows": Shape(
        "Qwen2", 32000,
        _dims(896, 4864, 12, 14, 2, use_sliding_window=True, sliding_window=512,
              max_window_layers=6),
    ),
    "mistral-window": Shape("Mistral", 32000, _dims(1024, 3584, 10, 16, 8, sliding_window=512)),
    "gemma2": Shape("Gemma2", 32000, _dims(1024, 4096, 10, 8, 4, head_dim=128,
                                           query_pre_attn_scalar=128, sliding_window=1024)),
    "gemma3": Shape("Gemma3", 128256, _dims(640, 2048, 12, 4, 1, head_dim=256,
                                            query_pre_attn_scalar=256, sliding_window=512)),
    "mixtral": Shape("Mixtral", 32000, _dims(512, 1536, 6, 8, 4, num_local_experts=8,
                                             num_experts_per_tok=2, sliding_window=None)),
    "olmoe": Shape("Olmoe", 32000, _dims(512, 512, 6, 8, 8, num_experts=32,
                                         num_experts_per_tok=8)),
    "qwen3-moe": Shape("Qwen3Moe", 32000, _dims(768, 2048, 6, 12, 4, head_dim=64, num_experts=32,
                                                num_experts_per_tok=4, moe_intermediate_size=384)),
    "deepseek-v2": Shape(
        "DeepseekV2", 32000,
        _dims(768, 2048, 8, 12, 12, kv_lora_rank=256, q_lora_rank=None, qk_rope_head_dim=32,
              qk_nope_head_dim=64, v_head_dim=64, n_routed_experts=16, num_experts_per_tok=2,
              moe_intermediate_size=256, n_shared_experts=1, first_k_dense_replace=1),
    ),
    "mamba2": Shape("Mamba2", 32000, {"hidden_size": 768, "num_hidden_layers": 16,
                                      "num_heads": 24, "head_dim": 64, "state_size": 128,
                                      "n_groups": 1, "expand": 2}),
    "falcon-h1": Shape("FalconH1", 32000, _dims(1024, 2048, 8, 8, 2, head_dim=64, mamba_d_ssm=1024,
                                                mamba_n_heads=16, mamba_d_head=64,
                                                mamba_d_state=128)),
    "qwen3-next": Shape(
        "Qwen3Next", 32000,
        _dims(768, 2048, 8, 12, 2, head_dim=64, num_experts=16, num_experts_per_tok=4,
              moe_intermediate_size=256, shared_expert_intermediate_size=256,
              linear_num_value_heads=16, linear_num_key_heads=8, linear_key_head_dim=64,
              linear_value_head_dim=64),
    ),
    "gpt2": Shape("GPT2LMHead", 32000, {"n_embd": 768, "n_layer": 12, "n_head": 12,
                                        "n_positions": 4096}),
    "phi3": Shape("Phi3", 32000, _dims(1024, 4096, 10, 16, 16, pad_token_id=0)),
}  # fmt: skip

CASES = {
    "brook": Case(None, 4096, 16),
    "llama, bf16": Case("llama", 1024, 4),
    "llama, q8_0": Case("llama", 2048, 4, ("--quantize", "q8_0")),
    "llama, q4_0, int8 cache": Case("llama", 4096, 4, ("--quantize", "q4_0", "--kv-dtype", "int8")),
    "llama, float32": Case("llama-f32", 1024, 8),
    "llama, GQA, bf16": Case("llama-gqa", 2048, 8),
    "llama, GQA, int8": Case("llama-gqa", 8192, 2, ("--quantize", "int8")),
    "qwen3-0.6b, bf16": Case("qwen3-0.6b", 1024, 4),
    "qwen3-0.6b, q8_0, int8 cache": Case(
        "qwen3-0.6b", 4096, 1, ("--quantize", "q8_0", "--kv-dtype", "int8")
    ),
    "qwen3-0.6b, q4_0, int4 cache": Case(
        "qwen3-0.6b", 2048, 2, ("--quantize", "q4_0", "--kv-dtype", "int4")
    ),
    "qwen2, windows": Case("qwen2-windows", 2048, 4),
    "qwen2, windows, q8_0": Case("qwen2-windows", 4096, 2, ("--quantize", "q8_0")),
    "mistral, window": Case("mistral-window", 4096, 2),
    "gemma2": Case("gemma2", 2048, 4),
    "gemma3": Case("gemma3", 4096, 4),
    "gemma3, q8_0": Case("gemma3", 1024, 8, ("--quantize", "q8_0")),
    "mixtral": Case("mixtral", 1024, 8),
    "mixtral, q4_0": Case("mixtral", 4096, 2, ("--quantize", "q4_0")),
    "olmoe": Case("olmoe", 2048, 4),
    "qwen3-moe": Case("qwen3-moe", 1024, 4),
    "deepseek-v2, latents": Case("deepseek-v2", 4096, 4),
    "mamba2": Case("mamba2", 1024, 4),
    "falcon-h1": Case("falcon-h1", 2048, 4),
    "qwen3-next": Case("qwen3-next", 2048, 2),
    "gpt2": Case("gpt2", 1024, 8),
    "phi3, fused": Case("phi3", 1024, 4),
    "qwen3-0.6b, Q4_K GGUF": Case("qwen3-0.6b", 2048, 2, gguf="q4_k"),
    "qwen3-0.6b, Q8_0 GGUF": Case("qwen3-0.6b", 1024, 4, gguf="q8_0"),
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """Bytes: as planned, and as taken; `engine` is the part of the engine's process."""

    planned: dict[str, Any]
    taken: int
    engine: int

    @property
    def error(self) -> float:
        """Planned by taken, less 1."""
        return float(self.planned["total_bytes"] / self.taken - 1)


def write_shape(name: str, folder: Path) -> Path:
    """A checkpoint folder with a real vocabulary, made where it is not there."""
    path = folder / name
    if (path / "config.json").is_file() and (path / "tokenizer.json").is_file():
        return path
    import torch
    import transformers

    shape = SHAPES[name]
    prefix = shape.prefix.removesuffix("LMHead")
    extra = "Text" if prefix == "Gemma3" else ""
    config = getattr(transformers, f"{prefix}{extra}Config")(
        vocab_size=shape.vocab, bos_token_id=1, eos_token_id=2, **shape.values
    )
    ending = "Model" if shape.prefix.endswith("LMHead") else "ForCausalLM"
    with torch.device("meta"):
        model = getattr(transformers, shape.prefix + ending)(config)
    model = model.to(getattr(torch, shape.dtype)).to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.02) if parameter.dim() > 1 else parameter.fill_(1.0)
    model.tie_weights()
    model.save_pretrained(path)
    source = SHARED_DATA / "vocab" / f"ggml-vocab-{_VOCABULARIES[shape.vocab]}.gguf"
    metadata = gguf.read_file(source).metadata
    tokenizer_from_gguf(metadata)[0].save(str(path / "tokenizer.json"))
    return path


def model_of(case: Case, folder: Path) -> str:
    """What both commands are given as their model."""
    if case.shape is None:
        return "brook"
    path = write_shape(case.shape, folder)
    if not case.gguf:
        return str(path)
    file = folder / f"{case.shape}-{case.gguf}.gguf"
    if not file.exists():
        tidemill_says("quantize", "--type", case.gguf, str(path), str(file))
    return str(file)


def tidemill_says(*arguments: str) -> str:
    """What the command line prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tidemill", *arguments], capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout


def measure(case: Case, folder: Path) -> Found:
    """Plan a case, serve it, fill its cache."""
    model = model_of(case, folder)
    shared = ("--max-num-seqs", str(case.streams), *case.flags)
    asked = ("--context", str(case.context), "--concurrency", str(case.streams), *shared)
    first = json.loads(tidemill_says("plan", model, "--json", *asked))
    # A recurrent model's states and their copies for prefixes take a part of this.
    cache = str(
        max(MIB, 2 * first["cache_bytes"] if first["state_bytes"] else first["cache_bytes"])
    )
    planned = json.loads(
        tidemill_says("plan", model, "--json", "--max-model-len", str(case.context),
                  "--kv-memory", cache, *shared)
    )  # fmt: skip
    flags = ("--max-model-len", str(case.context), "--kv-memory", cache, "--packed-cache", "off")
    with RealServer(model, "--served-name", "m", *flags, *shared) as server:
        while "weights loaded" not in server.text:  # laying them out takes more for a while
            time.sleep(_SAMPLE_SECONDS)
        with _peak(server) as peak:
            fill(server, case, planned)
            time.sleep(3 * _SAMPLE_SECONDS)
        return Found(planned, *peak)


@contextlib.contextmanager
def _peak(server: RealServer) -> Iterator[list[int]]:
    """The most that all of a server's processes take, and its engine."""
    highest, stop = [0, 0], threading.Event()
    engine = server.engine().pid

    def look() -> None:
        while not stop.wait(_SAMPLE_SECONDS):
            with contextlib.suppress(OSError, psutil.Error):  # a process ended meanwhile
                pids = pids_of(server) | {engine}
                highest[:] = map(max, highest, (taken_bytes(pids), taken_bytes({engine})))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield highest
    finally:
        stop.set()
        thread.join()


def pids_of(server: RealServer) -> set[int]:
    """All processes of a server."""
    first = server.process.pid
    return {first, *(p.pid for p in psutil.Process(first).children(recursive=True))}


def taken_bytes(pids: Iterable[int]) -> int:
    """What the proportional set size of processes would be if no others shared their files: pages
    of their own, and resident parts of files once."""
    own, files = _own_and_files(pids)
    return own + sum(files.values())


def file_bytes(pids: Iterable[int], but: str) -> int:
    """Resident parts of files, once each; without those whose name ends so."""
    _, files = _own_and_files(pids)
    return sum(nbytes for (name, _), nbytes in files.items() if not name.endswith(but))


def _own_and_files(pids: Iterable[int]) -> tuple[int, dict[tuple[str, str], int]]:
    own, shared = 0, dict[tuple[str, str], int]()
    for pid in pids:
        place: tuple[str, str] | None = None
        resident = 0
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            words = line.split()
            if words[0] == "Rss:":
                resident = int(words[1])
            elif words[0] == "Anonymous:":
                anonymous = int(words[1])
                own += anonymous
                if place is not None:
                    shared[place] = max(shared.get(place, 0), resident - anonymous)
            elif not words[0].endswith(":"):
                place = (words[5], words[2]) if len(words) > 5 and words[5][0] == "/" else None
    return 1024 * own, {place: 1024 * kib for place, kib in shared.items()}


def fill(server: RealServer, case: Case, planned: dict[str, Any], times: int = 2) -> None:
    """As many requests of full length as the cache holds; twice, since steps differ."""
    drawn = random.Random(0)
    tokens = int(planned["context"])
    high = {None: 3000}.get(case.shape) or SHAPES[str(case.shape)].vocab
    prompts = [
        [drawn.randrange(10, high - 10) for _ in range(tokens - 9)] for _ in range(case.streams)
    ]

    def ask(prompt: list[int]) -> None:
        answer = httpx.post(  # a connection of its own: one that was idle may be closed meanwhile
            f"{server.url}/v1/completions",
            json={"model": "m", "prompt": prompt, "max_tokens": 8, "ignore_eos": True},
            timeout=600,
        )
        assert answer.status_code == 200, answer.text

    for _ in range(times):
        with ThreadPoolExecutor(case.streams) as pool:
            list(pool.map(ask, prompts))


def row(name: str, case: Case, found: Found) -> str:
    """A row of the table, in MiB."""
    planned = found.planned
    over = planned["overhead"]
    sizes = (
        planned["weights_bytes"], planned["cache_bytes"], over["activations"],
        over["engine_process"], over["server_process"], planned["total_bytes"], found.taken,
        found.engine,
    )  # fmt: skip
    cells = " | ".join(f"{size / MIB:.0f}" for size in sizes)
    return f"| {name} | {case.streams} x {case.context} | {cells} | {found.error:+.1%} |"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=list(CASES), action="append", help="all by default")
    parser.add_argument("--folder", type=Path, help="keep the models here")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="tidemill-plan-memory-"))
    lines = [
        "| model | requests | weights | cache | activations | engine | API | planned, MiB | taken "
        "(PSS, alone) | of it the engine | error |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    errors = []
    try:
        for name in args.case or CASES:
            try:
                found = measure(CASES[name], folder)
            except Exception as error:  # the other cases are worth their time
                print(f"{name}: {error}"[:400], file=sys.stderr, flush=True)
                continue
            lines.append(row(name, CASES[name], found))
            errors.append(found.error)
            print(lines[-1], flush=True)
    finally:
        if args.folder is None:
            shutil.rmtree(folder)
    worst = f"From {min(errors):+.1%} to {max(errors):+.1%}."
    print(worst)
    if args.write:
        text = DOC.read_text()
        before, _, rest = text.partition(BEGIN)
        body = "\n".join((*lines, "", worst))
        DOC.write_text(f"{before}{BEGIN}\n{body}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
