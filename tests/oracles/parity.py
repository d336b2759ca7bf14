"""GGUF against outside readers (`make parity`): llama.cpp and transformers must agree with us.

Our own GGUF writer and reader could agree on a mistake, so the files here are made by llama.cpp's
converter and quantizer, from tiny random checkpoints written by transformers. Compared are the
logits of Tidemill (torch in float32, and native), of llama.cpp, and of transformers' own GGUF
loader. The first run builds llama-cpp-python from its source distribution, which takes minutes.

Writes docs/parity.md and the fixtures under tests/fixtures/gguf, which `make test` checks without
any of this.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".work" / "parity"
TOOLS = Path(__file__).with_name("parity_tools.py")
FIXTURES = ROOT / "tests" / "fixtures" / "gguf"
REPORT = ROOT / "docs" / "parity.md"
PACKAGE = "llama-cpp-python"
VOCAB = 320
TOKENS = 40
SEED = 7

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True)
class Case:
    """A checkpoint, the file types made of it and the word rule its GGUF file names."""

    name: str
    config: dict[str, Any]
    types: tuple[str, ...]
    rule: str


CASES = (
    Case("Llama", {}, ("f32", "f16", "bf16", "q8_0", "q4_0"), "llama-bpe"),
    Case("Llama-llama3-rope", {"rope_parameters": _LLAMA3}, ("f32", "q8_0", "q4_0"), "llama-bpe"),
    Case(
        "Llama-linear-rope",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
        ("f32",),
        "llama-bpe",
    ),
    Case("Llama-biases", {"attention_bias": True, "tie_word_embeddings": True}, ("f32",), "gpt-2"),
    Case("Mistral", {"sliding_window": None}, ("f32", "q8_0"), "tekken"),
    Case("Qwen2", {}, ("f32", "f16", "q8_0", "q4_0"), "qwen2"),
    Case("Qwen3", {"tie_word_embeddings": True}, ("f32", "bf16", "q8_0", "q4_0"), "qwen2"),
)
# Small enough for the repository, and together they show every type, family and rope rule.
KEPT = {
    "Llama-bf16", "Llama-q8_0", "Llama-llama3-rope-f32", "Llama-llama3-rope-q4_0",
    "Llama-linear-rope-f32", "Llama-biases-f32", "Mistral-q8_0", "Qwen2-f16", "Qwen2-q4_0",
    "Qwen3-f32", "Qwen3-q8_0",
}  # fmt: skip


def fetch_llama_cpp(folder: Path) -> tuple[Path, Path]:
    """(llama-cpp-python's source distribution, llama.cpp's folder in it), once fetched kept."""
    archives = sorted(folder.glob("llama_cpp_python-*.tar.gz"))
    if not archives:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
        subprocess.run([*pip, "--no-binary", PACKAGE, PACKAGE], check=True)
        archives = sorted(folder.glob("llama_cpp_python-*.tar.gz"))
    archive = archives[-1]
    sources = folder / "src" / archive.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp"
    if not sources.is_dir():
        with tarfile.open(archive) as tar:
            tar.extractall(folder / "src", filter="data")
    return archive, sources


def build_llama_cpp() -> tuple[Path, Path]:
    """(python with llama-cpp-python, folder of llama.cpp's sources); built once."""
    WORK.mkdir(parents=True, exist_ok=True)
    python = WORK / "venv" / "bin" / "python"
    archive, sources = fetch_llama_cpp(WORK)
    if not python.exists():
        venv.create(WORK / "venv", with_pip=True)
    probe = subprocess.run([python, "-c", "import llama_cpp"], capture_output=True, check=False)
    if probe.returncode:
        print("building llama-cpp-python (minutes) ...", flush=True)
        # Not for this very processor: llama.cpp then takes AMX, which some virtual machines
        # announce and do not have.
        off = ("LLAVA_BUILD", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_TOOLS",
               "LLAMA_BUILD_SERVER", "GGML_OPENMP", "GGML_NATIVE")  # fmt: skip
        flags = " ".join(f"-D{name}=OFF" for name in off)
        environment = {"CMAKE_BUILD_PARALLEL_LEVEL": "2", **os.environ, "CMAKE_ARGS": flags}
        command = [str(python), "-m", "pip", "install", "-q", str(archive)]
        subprocess.run(command, check=True, env=environment)
    return python, sources


def add_accelerate() -> None:
    """transformers reads GGUF only beside accelerate; it goes into a folder of its own."""
    extra = WORK / "extra"
    if not (extra / "accelerate").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(extra)]
        subprocess.run([*pip, "accelerate"], check=True)
    sys.path.append(str(extra))


def make_checkpoint(case: Case, folder: Path) -> Any:
    """Write a random checkpoint with a small byte-level tokenizer; returns the model."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    prefix = case.name.split("-")[0]
    sizes = dict(_SIZES) if prefix != "Qwen2" else {k: v for k, v in _SIZES.items()
                                                    if k != "head_dim"}  # fmt: skip
    if prefix == "Qwen2":
        sizes["hidden_size"] = 64
    config = getattr(transformers, prefix + "Config")(**{**sizes, **case.config})
    torch.manual_seed(SEED + len(case.name))
    model = getattr(transformers, prefix + "ForCausalLM")(config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" in key:
                parameter.uniform_(0.5, 1.5)
            elif key.endswith("bias"):
                parameter.normal_(0.0, 0.3)
            elif "embed" in key or "lm_head" in key:
                parameter.normal_(0.0, 0.5)
            else:
                parameter.normal_(0.0, 1.2 * parameter.shape[1] ** -0.5)
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - 8,  # transformers adds tokens of its own for some families
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    text = (ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else __doc__
    tokenizer.train_from_iterator([str(text), str(__doc__)], trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    fast.save_pretrained(folder)
    return model


def make_files(case: Case, folder: Path, python: Path, sources: Path) -> dict[str, Path]:
    """GGUF files of all the case's types, by llama.cpp's converter and quantizer."""
    files: dict[str, Path] = {}
    for kind in case.types:
        out = WORK / "out" / f"{case.name}-{kind}.gguf"
        out.unlink(missing_ok=True)
        if kind == "q4_0":
            command = [python, TOOLS, "quantize", files["f32"], out, kind]
        else:
            command = [sys.executable, TOOLS, "convert", sources, folder, out, kind, case.rule]
        run = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        if run.returncode or not out.exists():
            raise SystemExit(f"{case.name} {kind}: {run.stdout[-2000:]}{run.stderr[-4000:]}")
        files[kind] = out
    return files


def llama_cpp_logits(python: Path, path: Path, tokens: list[int]) -> np.ndarray:
    """llama.cpp's logits of every position."""
    out = WORK / "out" / "logits.npy"
    ids = ",".join(map(str, tokens))
    command = [str(python), str(TOOLS), "logits", str(path), ids, str(out)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{path.name}: llama.cpp: {run.returncode} {run.stderr[-4000:]}")
    return np.load(out)


def transformers_logits(path: Path, model: Any, tokens: list[int]) -> np.ndarray | None:
    """Logits of transformers with weights read by its own GGUF loader.

    It reads neither rope factors nor rope scaling nor Qwen3's head dimension from the file, so
    these come from the original config. Biases of Llama it does not read at all: None.
    """
    if getattr(model.config, "attention_bias", False):
        return None
    import torch
    import transformers

    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, **_shape_hint(model.config)
    )
    # GGUF files of Mistral models say llama: the class may differ, the tensors' names do not.
    fresh = type(model)(model.config).eval()
    fresh.load_state_dict(loaded.state_dict())
    return hf_logits(fresh, tokens)


def _shape_hint(config: Any) -> dict[str, int]:
    return {"head_dim": config.head_dim} if config.model_type == "qwen3" else {}


def hf_logits(model: Any, tokens: list[int]) -> np.ndarray:
    """Logits of a transformers model in float32."""
    import torch

    with torch.inference_mode():
        return model.float()(torch.tensor([tokens])).logits[0].numpy()


def tidemill_logits(path: Path, backend: str, tokens: list[int]) -> np.ndarray | None:
    """Ours; None when the native backend is not built."""
    sys.path[:0] = [str(ROOT / "tests")]
    import importlib

    from helpers.backend_driver import BackendDriver, options

    from tidemill.loading import open_model

    try:
        module = importlib.import_module(f"tidemill.backends.{backend}")
        files = open_model(path)
        driver = BackendDriver(module.load(files.spec, files.tensors, options()))
    except ImportError:
        return None
    logits = driver.all_logits(tokens)
    driver.backend.close()
    return logits


def distance(a: np.ndarray | None, b: np.ndarray | None) -> str:
    """Largest difference, and mean squared difference over the variance of `b`."""
    if a is None or b is None:
        return "-"
    return f"{np.abs(a - b).max():.1e} ({np.square(a - b).mean() / b.var():.0e})"


_HEADER = """# Parity of GGUF files

Written by `make parity` ({versions}).

Files are made by llama.cpp's converter (Q4_0: its quantizer) from tiny random checkpoints; the
numbers are the largest difference of any logit over {tokens} positions and, in parentheses, the
mean squared difference over the logits' variance. Logits have a standard deviation near
{deviation:.1f}.

torch is Tidemill's torch backend in float32 on the CPU, native its native backend in float32.
llama.cpp rounds activations to the weight's type before it multiplies (to f16, bf16 or Q8_0), so
only F32 files compare it tightly; transformers' GGUF loader dequantizes and computes in float32,
as torch does. It does not read rope scaling and Qwen3's head dimension from the file, so it gets
them from the original config; biases of Llama it does not read at all.
The last column compares with the original checkpoint in transformers and shows what quantization
costs.

| file | torch, transformers | torch, llama.cpp | native, torch | torch, original |
|---|---|---|---|---|
"""


def main() -> None:
    """Build, convert, compare, write."""
    python, sources = build_llama_cpp()
    add_accelerate()
    import transformers

    (WORK / "out").mkdir(exist_ok=True)
    FIXTURES.mkdir(parents=True, exist_ok=True)
    tokens = np.random.default_rng(SEED).integers(3, VOCAB, TOKENS).tolist()
    lines, failures, deviations = [], [], []
    wanted = sys.argv[1:]
    for case in CASES:
        if wanted and case.name not in wanted:
            continue
        folder = WORK / "checkpoints" / case.name
        model = make_checkpoint(case, folder)
        original = hf_logits(model, tokens)
        deviations.append(original.std())
        for kind, path in make_files(case, folder, python, sources).items():
            ours = tidemill_logits(path, "torch", tokens)
            native = tidemill_logits(path, "native", tokens)
            llama = llama_cpp_logits(python, path, tokens)
            theirs = transformers_logits(path, model, tokens)
            assert ours is not None
            cells = (distance(ours, theirs), distance(ours, llama), distance(native, ours),
                     distance(ours, original))  # fmt: skip
            line = f"| {case.name} {kind.upper()} | " + " | ".join(cells) + " |"
            print(line, flush=True)
            lines.append(line)
            tight = 2e-4 if kind == "f32" else None
            nmse = np.square(ours - llama).mean() / llama.var()
            if nmse > 2e-3 or (theirs is not None and np.abs(ours - theirs).max() > 2e-4):
                failures.append(f"{case.name} {kind}")
            if tight and np.abs(ours - llama).max() > tight:
                failures.append(f"{case.name} {kind} against llama.cpp")
            if f"{case.name}-{kind}" in KEPT:
                keep(path, tokens, llama, original if theirs is None else theirs)
    if wanted:
        raise SystemExit("part of the cases: no report written")
    versions = f"llama-cpp-python {sources.parents[1].name.rpartition('-')[2]}, "
    versions += f"transformers {transformers.__version__}"
    header = _HEADER.format(versions=versions, tokens=TOKENS, deviation=np.mean(deviations))
    REPORT.write_text(header + "\n".join(lines) + "\n")
    if failures:
        raise SystemExit(f"logits differ: {', '.join(failures)}")
    print(json.dumps({"compared": len(lines), "report": str(REPORT.relative_to(ROOT))}))


def keep(path: Path, tokens: list[int], llama: np.ndarray, theirs: np.ndarray) -> None:
    """Store the file and both readers' logits as a fixture."""
    (FIXTURES / path.name).write_bytes(path.read_bytes())
    np.savez_compressed(
        FIXTURES / path.with_suffix(".npz").name,
        tokens=np.array(tokens, np.int32),
        llama_cpp=llama[::4],
        transformers=theirs[::4],
    )


if __name__ == "__main__":
    main()
