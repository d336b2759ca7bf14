"""lm-evaluation-harness against the server and against transformers: `make lm-eval`.

The same three tasks over forty made-up questions: log-likelihoods of two continuations, a rolling
log-likelihood, a generated answer. Both sides must give the same numbers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from helpers.real_server import RealServer  # noqa: E402

BRAND = ROOT / "src" / "tidemill" / "assets" / "brook"
VENV = ROOT / ".work" / "clients" / "lmeval"
PLACES = "Tolvar Mirne Kessol Arbin Quill Dorset Ulmen Varsk Pelno Ostrim".split()  # noqa: SIM905
COLOURS = ["red", "blue", "green", "white"]
TASKS: dict[str, dict[str, Any]] = {
    "tm_choice": {
        "output_type": "multiple_choice",
        "doc_to_choice": ["red.", "blue.", "green.", "white."],
        "doc_to_target": "{{answer}}.",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "tm_rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{question}} {{answer}}",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    },
    "tm_generate": {
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}.",
        "generation_kwargs": {"until": ["\n", "<|im_end|>"], "max_gen_toks": 12},
        "metric_list": [{"metric": "exact_match", "ignore_punctuation": True}],
    },
}
BEGIN, END = "<!-- lm-eval: begin -->", "<!-- lm-eval: end -->"


def write_tasks(folder: Path) -> None:
    """The harness's own kind of task files, over a JSON file."""
    rows = []
    for i in range(40):
        place, colour = PLACES[i % 10] + "ia" * (i // 10), COLOURS[(i * 7) % 4]
        text = f"The gate of {place} is {colour}. What colour is the gate of {place}?"
        prompt = (
            f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        )
        rows.append({"question": prompt, "answer": colour})
    data = folder / "data.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    for name, task in TASKS.items():
        spec = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            "test_split": "test",
            "doc_to_text": "{{question}}",
            "target_delimiter": "",
            **task,
        }
        # JSON is YAML.
        (folder / f"{name}.yaml").write_text(json.dumps(spec))


def likelihoods(output: Path) -> list[float]:
    """The log-likelihood of every continuation of tm_choice, in nats, in the tasks' order."""
    (samples,) = output.rglob("samples_tm_choice_*.jsonl")
    rows = sorted(map(json.loads, samples.read_text().splitlines()), key=lambda r: r["doc_id"])
    return [float(pair[0]) for row in rows for pair in row["filtered_resps"]]


def evaluate(
    folder: Path, model: str, arguments: str, *more: str
) -> tuple[dict[str, float], list[float]]:
    """One run of the harness: task/metric -> value, and the single log-likelihoods."""
    output = folder / f"out-{model}"
    command = [
        str(VENV / "bin" / "lm_eval"), "--model", model, "--model_args", arguments,
        "--tasks", ",".join(TASKS), "--include_path", str(folder), "--output_path", str(output),
        "--log_samples", *more,
    ]  # fmt: skip
    environment = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "PATH": "/usr/bin:/bin",
                   "HOME": str(folder), "HF_HOME": str(folder / "hf"),
                   "OPENAI_API_KEY": "none"}  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    results = json.loads(next(output.rglob("results*.json")).read_text())["results"]
    metrics = {
        f"{task} {metric.split(',')[0]}": value
        for task, found in results.items()
        for metric, value in found.items()
        if isinstance(value, float) and "stderr" not in metric
    }
    return metrics, likelihoods(output)


def main() -> int:
    if not (VENV / "bin" / "lm_eval").exists():
        print("installing lm-eval ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "-q"]
        subprocess.run([*pip, "torch==2.13.0"], check=True)
        subprocess.run([*pip, "lm-eval[api]", "transformers", "accelerate"], check=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tasks(folder)
        with RealServer("--dtype", "float32") as server:
            arguments = (
                f"model=brook,base_url={server.url}/v1/completions,tokenizer={BRAND},"
                "tokenizer_backend=huggingface,num_concurrent=4,max_retries=1"
            )
            ours, our_nats = evaluate(folder, "local-completions", arguments)
        theirs, their_nats = evaluate(
            folder,
            "hf",
            f"pretrained={BRAND},dtype=float32",
            "--device",
            "cpu",
            "--batch_size",
            "8",
        )
    gap = max(abs(a - b) for a, b in zip(our_nats, their_nats, strict=True))
    rows = [f"| {key} | {ours[key]:.6f} | {theirs[key]:.6f} |" for key in sorted(theirs)]
    table = "\n".join(["| task, metric | our server | transformers |", "|---|---|---|", *rows])
    print(table)
    worst = max(abs(ours[key] - theirs[key]) / max(1.0, abs(theirs[key])) for key in theirs)
    table += (
        f"\n\nThe {len(our_nats)} single log-likelihoods of tm_choice differ by at most "
        f"{gap:.1e} nats."
    )
    print(f"largest difference: of a metric {worst:.2e}, of a log-likelihood {gap:.2e}")
    worst = max(worst, gap)
    if worst < 1e-3:
        page = ROOT / "docs" / "clients.md"
        head, rest = page.read_text().split(BEGIN)
        page.write_text(f"{head}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}")
    return worst >= 1e-3


if __name__ == "__main__":
    sys.exit(main())
