"""Throughputs and latencies that others have published, beside what the planner predicts.

`python tests/helpers/published.py --write` writes the table of docs/planning.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from helpers.sparse_model import LLAMA_7B, LLAMA_13B, LLAMA_70B  # noqa: E402

from tidemill.backends.base import HeldTensor  # noqa: E402
from tidemill.models.registry import family_for_config  # noqa: E402
from tidemill.models.tensors import TensorHeader  # noqa: E402
from tidemill.planning.device_table import DEVICES  # noqa: E402
from tidemill.planning.timing import DeviceTiming, decode_step, prefill  # noqa: E402
from tidemill.planning.work import Work, work_of  # noqa: E402

DOC = Path(__file__).resolve().parents[2] / "docs" / "planning.md"
BEGIN, END = "<!-- published: begin -->", "<!-- published: end -->"

_TRT = "NVIDIA/TensorRT-LLM, docs/source/performance.md at 138f96d"
_H200 = "NVIDIA/TensorRT-LLM, docs/source/blogs/H200launch.md at 1555478"
_EPYC = "ahelpme.com/?p=6685"
_GPUS = "pavlokhmel.com/llm_throughput_benchmark_on_13_gpus_and_10_models.html"
_3090 = "calebcoffie.com/benchmarks/gemma-3-4b-it-gguf"

GPT_J: Mapping[str, Any] = {
    "architectures": ["GPTJForCausalLM"], "model_type": "gptj", "vocab_size": 50400,
    "n_embd": 4096, "n_layer": 28, "n_head": 16, "n_positions": 2048, "rotary_dim": 64,
}  # fmt: skip
PHI_4: Mapping[str, Any] = {
    **LLAMA_7B, "vocab_size": 100352, "hidden_size": 5120, "intermediate_size": 17920,
    "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 10,
}  # fmt: skip
GEMMA_3_4B: Mapping[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "vocab_size": 262208,
    "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "sliding_window": 1024,
    "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
}  # fmt: skip
GPT_OSS_20B: Mapping[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": 201088,
    "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "num_local_experts": 32, "num_experts_per_tok": 4, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5, "sliding_window": 128, "attention_bias": True,
    "tie_word_embeddings": False, "hidden_act": "silu", "rope_theta": 150000.0,
}  # fmt: skip
# Bits of routed experts where they differ from the rest.
_EXPERT_BITS = {"gpt-oss 20B": 4.25}
_MODELS = {
    "GPT-J 6B": GPT_J, "LLaMA 7B": LLAMA_7B, "LLaMA 13B": LLAMA_13B, "LLaMA 70B": LLAMA_70B,
    "Phi-4 14B": PHI_4, "Gemma 3 4B": GEMMA_3_4B, "gpt-oss 20B": GPT_OSS_20B,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A published measurement.

    Attributes:
        device: of the table.
        model: of `_MODELS`.
        bits: per weight, as stored.
        batch: requests that are computed together from their first to their last token.
        prompt, output: tokens of each; output 0: the time to the first token was measured.
        measured: output tokens per second, or milliseconds.
        source: where.
        fitted: the device's shares were fitted to this one.
    """

    device: str
    model: str
    bits: float
    batch: int
    prompt: int
    output: int
    measured: float
    source: str
    fitted: bool = False

    def predicted(self) -> tuple[float, float, float]:
        """What was measured, predicted: value, low, high."""
        timing = DeviceTiming(DEVICES[self.device], _work(self.model, self.bits))
        first = prefill(timing, self.prompt, self.batch)
        if not self.output:
            return first.value * 1e3, first.low * 1e3, first.high * 1e3
        whole = decode_step(timing, self.batch, self.prompt, self.output).times(self.output)
        if self.prompt > 1:
            whole = whole.plus(first)
        tokens = self.batch * self.output
        return tokens / whole.value, tokens / whole.high, tokens / whole.low

    @property
    def error(self) -> float:
        """Predicted by measured, less 1."""
        return self.predicted()[0] / self.measured - 1


def _work(model: str, bits: float) -> Work:
    config = _MODELS[model]
    spec = family_for_config(config).spec(dict(config))
    headers, held = {}, {}
    for name, shape in spec.expected_tensors().items():
        size = 1
        for width in shape:
            size *= width
        headers[name] = TensorHeader("BF16", shape, 2 * size)
        # FP8 engines keep the output layer in 16 bits; GGUF files quantize it.
        kept = 16 if name == "lm_head.weight" and bits == 8 else bits
        kept = _EXPERT_BITS.get(model, kept) if ".experts." in name else kept
        held[name] = HeldTensor(int(size * kept / 8))
    narrow = bits == 8
    kind = "int8" if narrow else "bfloat16" if bits >= 16 else "q4_k"
    return work_of(spec, headers, held, "int8" if narrow else "bfloat16", kind)


def _rows(
    device: str, model: str, bits: float, source: str, *loads: tuple[int, int, int, float],
    fitted: bool = False,
) -> Iterator[Case]:  # fmt: skip
    for load in loads:
        yield Case(device, model, bits, *load, source, fitted)


CASES = (
    *_rows(
        "h100-sxm", "GPT-J 6B", 8, _TRT, (1024, 128, 128, 26150), (120, 128, 2048, 8011),
        (64, 2048, 128, 2551), (64, 2048, 2048, 3327), (1, 128, 0, 7), (1, 2048, 0, 29),
        fitted=True,
    ),
    *_rows(
        "h100-sxm", "LLaMA 7B", 8, _TRT, (768, 128, 128, 19694), (112, 128, 2048, 6818),
        (80, 2048, 128, 2244), (48, 2048, 2048, 2740), (1, 128, 0, 7), (1, 2048, 0, 36),
    ),
    *_rows(
        "l40s", "GPT-J 6B", 8, _TRT, (64, 128, 128, 3630), (64, 128, 2048, 1859),
        (32, 2048, 128, 616), (32, 2048, 2048, 757), (1, 128, 0, 12), (1, 2048, 0, 71),
        fitted=True,
    ),
    *_rows(
        "l40s", "LLaMA 7B", 8, _TRT, (64, 128, 128, 3240), (64, 128, 2048, 1622),
        (32, 2048, 128, 581), (16, 2048, 2048, 531), (1, 128, 0, 14), (1, 2048, 0, 73),
    ),
    *_rows(
        "a100-sxm-80gb", "GPT-J 6B", 16, _TRT, (512, 128, 128, 6374), (60, 2048, 128, 670),
        (1, 128, 0, 12), (1, 2048, 0, 129), fitted=True,
    ),
    *_rows(
        "a100-sxm-80gb", "LLaMA 7B", 16, _TRT, (384, 128, 128, 5586), (60, 128, 2048, 1928),
        (52, 2048, 128, 591), (1, 128, 0, 16), (1, 2048, 0, 133),
    ),
    *_rows(
        "h200-sxm", "LLaMA 13B", 8, _H200, (1024, 128, 128, 11819), (128, 128, 2048, 4750),
        (64, 2048, 128, 1349),
    ),
    *_rows(
        "h200-sxm", "LLaMA 70B", 8, _H200, (512, 128, 128, 3014), (64, 2048, 128, 341),
        (32, 2048, 128, 303),
    ),
    *_rows("epyc-9554", "Phi-4 14B", 4.94, _EPYC, (1, 1, 128, 28.74), fitted=True),
    *_rows("epyc-9554", "Phi-4 14B", 8.5, _EPYC, (1, 1, 128, 19.194), fitted=True),
    *_rows("epyc-9554", "Phi-4 14B", 5.78, _EPYC, (1, 1, 128, 25.444)),
    *_rows("rtx-4090", "gpt-oss 20B", 6.4, _GPUS, (1, 1, 256, 266)),
    *_rows("rtx-3090", "Gemma 3 4B", 5.13, _3090, (1, 1, 512, 188.7)),
    *_rows("epyc-9554", "Phi-4 14B", 6.56, _EPYC, (1, 1, 128, 23.246)),
)  # fmt: skip


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table() -> str:
    """The table of docs/planning.md."""
    lines = [
        "| device | model | bits | requests | in, out | what | published | predicted | error | |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        value, low, high = case.predicted()
        what = "tokens/s" if case.output else "first token, ms"
        interval = f"{_digits(low)} to {_digits(high)}"
        lines.append(
            f"| {case.device} | {case.model} | {case.bits:g} | {case.batch} | {case.prompt}, "
            f"{case.output or 1} | {what} | {case.measured:,g} | {_digits(value)} "
            f"({interval}) | {case.error:+.0%} | {'fitted' if case.fitted else ''} |"
        )
    sources = sorted({case.source for case in CASES})
    return "\n".join((*lines, "", f"Sources: {'; '.join(sources)}."))


def main() -> None:
    """Print the table, or write it."""
    if "--write" not in sys.argv:
        print(table())
        return
    text = DOC.read_text()
    before, _, rest = text.partition(BEGIN)
    DOC.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
