"""Every family's GGUF files against llama.cpp (`make gguf-families`).

Of each of the tiny checkpoints of `helpers/gguf_cases.py` two files are made: by llama.cpp's
converter, and by ours. Ours must hold the same tensors; both are read here, and the logits compared
with what llama.cpp computes from the same file and with what transformers computes from the
checkpoint. llama-cpp-python is built on the first run (see `parity.py`).

Writes the table of docs/gguf-families.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from convert.test_gguf_families import write_without_vocabulary  # noqa: E402
from helpers.backend_driver import BackendDriver, options  # noqa: E402
from helpers.disguised import DISGUISES, Disguise, make_disguised  # noqa: E402
from helpers.family_cases import Case, make_case  # noqa: E402
from helpers.gguf_cases import GGUF_CASES  # noqa: E402
from helpers.references import prompt, reference_logits  # noqa: E402
from oracles.parity import TOOLS, build_llama_cpp  # noqa: E402

from tidemill.backends import native  # noqa: E402
from tidemill.base.errors import TidemillError  # noqa: E402
from tidemill.loading import open_model  # noqa: E402
from tidemill.loading.formats import gguf  # noqa: E402

REPORT = ROOT / "docs" / "gguf-families.md"
TOKENS = 75
# What the converter reads in configs that transformers does not write.
_EXTRA: dict[str, dict[str, Any]] = {
    "Cohere2": {"rotary_pct": 1.0},
    "GPT2": {"n_ctx": 256},
    "GPTNeoX": {"rotary_pct": None, "rotary_emb_base": 10000},
    "Mpt": {"architectures": ["MPTForCausalLM"]},
    "Glm": {"seq_length": 256},
    "Bloom": {"seq_length": 256},
    "DeepseekV3": {"scoring_func": "sigmoid"},
    "Phimoe": {
        "architectures": ["PhiMoEForCausalLM"],
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "original_max_position_embeddings": 256,
        },
    },
    "GraniteMoeHybrid": {"layer_types": ["mamba", "attention", "mamba"]},
}
# Letters of Nemotron-H's layers, by transformers' names: the converter overlooks dense ones else.
_LETTERS = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}


def _convert(case: Case, folder: Path, out: Path, sources: Path) -> str:
    """Run llama.cpp's converter on a copy of the config; what it said when it failed."""
    config = folder / "config.json"
    before = config.read_text()
    values = json.loads(before)
    extra = _EXTRA.get(case.prefix, {})
    values |= {key: case.values.get(key) if v is None else v for key, v in extra.items()}
    if case.prefix == "Falcon" and not case.values.get("new_decoder_architecture"):
        values["num_kv_heads"] = 1
    if case.prefix == "NemotronH":
        kinds = values["layers_block_type"]
        values["hybrid_override_pattern"] = "".join(_LETTERS[kind] for kind in kinds)
        if "moe" not in kinds:
            del values["num_experts_per_tok"]
    config.write_text(json.dumps(values))
    tokenizer = folder / "tokenizer.json"  # Gemma 3's converter counts its tokens
    tokens = {str(i): i for i in range(values["vocab_size"])}
    tokenizer.write_text(json.dumps({"model": {"vocab": tokens}, "added_tokens": []}))
    command = [sys.executable, str(TOOLS), "convert_bare", str(sources), str(folder), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    config.write_text(before)
    tokenizer.unlink()
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["?"])[-1]


def _llama_logits(python: Path, path: Path, ids: list[int], out: Path) -> Any:
    tokens = ",".join(map(str, ids))
    command = [str(python), str(TOOLS), "logits", str(path), tokens, str(out)]
    done = subprocess.run(command, capture_output=True, check=False)
    return np.load(out) if done.returncode == 0 else None


def _own_logits(path: Path, ids: list[int]) -> Any:
    files = open_model(path)
    loaded = native.load(files.spec, files.tensors, options(threads=2, max_positions=256))
    found = BackendDriver(loaded).all_logits(ids, None)
    loaded.close()
    return found


def _same_tensors(ours: Path, theirs: Path) -> bool:
    """Names, shapes and bytes of two files."""
    first, second = gguf.read_file(ours).tensors, gguf.read_file(theirs).tensors
    return set(first) == set(second) and all(
        first[n].shape == second[n].shape and bytes(first[n].view) == bytes(second[n].view)
        for n in first
        if not n.startswith("rope_")  # computed in other precisions
    )


def _row(case: Case | Disguise, folder: Path, python: Path, sources: Path) -> list[str]:
    make = make_disguised if isinstance(case, Disguise) else make_case
    model = make(case, folder / "m")
    case = case.case if isinstance(case, Disguise) else case
    ids = prompt(TOKENS)
    expected = reference_logits(model, ids)
    scale = float(expected.std())
    theirs, ours = folder / "theirs.gguf", folder / "ours.gguf"
    write_without_vocabulary(folder / "m", ours)
    error = _convert(case, folder / "m", theirs, sources)
    mine = _own_logits(ours, ids)
    cells = [f"{np.abs(mine - expected).max() / scale:.0e}"]
    cells.append(
        f"it fails ({error})" if error else "yes" if _same_tensors(ours, theirs) else "**no**"
    )
    for path in (ours, theirs):
        if error and path == theirs:
            cells.append("-")
            continue
        try:
            read = mine if path == ours else _own_logits(path, ids)
        except TidemillError as refusal:  # a file that its converter did not mean to write
            cells.append(f"is not read here ({refusal.message})")
            continue
        found = _llama_logits(python, path, ids, folder / "l.npy")
        if found is None:
            cells.append("does not load")
        else:
            cells.append(f"{np.abs(found - read).max() / scale:.0e}")
    return cells


def main() -> None:
    """Run all cases and write the table into the report."""
    python, sources = build_llama_cpp()
    rows = []
    wanted = sys.argv[1:]  # prefixes; without any, all and the report
    for case in [*GGUF_CASES, *DISGUISES]:
        prefix = case.case.prefix if isinstance(case, Disguise) else case.prefix
        if wanted and prefix not in wanted:
            continue
        with tempfile.TemporaryDirectory() as name:
            rows.append([case.family, case.about, *_row(case, Path(name), python, sources)])
        print(" | ".join(rows[-1]), flush=True)
    if wanted:
        raise SystemExit("part of the cases: no report written")
    head = ["family", "shape", "here and transformers", "same tensors as llama.cpp's converter",
            "llama.cpp on our file", "llama.cpp on its own"]  # fmt: skip
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    text = REPORT.read_text()
    start, end = text.index("<!-- table -->"), text.index("<!-- end of table -->")
    REPORT.write_text(text[:start] + "<!-- table -->\n" + "\n".join(lines) + "\n" + text[end:])


if __name__ == "__main__":
    main()
