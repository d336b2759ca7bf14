"""Known devices. Rates, memory and power are their makers' data sheets (dense, without sparsity);
prices are a host's list prices at the date given, for comparison, not offers.

Attainments are fitted to published measurements of one model, and checked against those of others:
`tests/planning/test_published.py`, docs/planning.md.
"""

from __future__ import annotations

from tidemill.planning.devices import Attainment, Device

_GIB = 2**30
_PRICES = "price: RunPod's list, March 2026"

_HOPPER = Attainment(
    0.975,
    0.575,
    120e-6,
    0.20,
    "GPT-J 6B in FP8 on an H100, TensorRT-LLM 0.6.1, 4 loads",
    (6e9, 70e9),
)
_ADA = Attainment(
    0.825,
    0.525,
    0.0,
    0.20,
    "GPT-J 6B in FP8 on an L40S, TensorRT-LLM 0.5, 4 loads",
    (6e9, 7e9),
)
_AMPERE = Attainment(
    0.975,
    0.675,
    0.0,
    0.20,
    "GPT-J 6B in FP16 on an A100, TensorRT-LLM 0.6.1, 2 loads",
    (12e9, 14e9),
)
# One stream alone: nothing published was found for their prompts and batches.
_GEFORCE = Attainment(
    0.92,
    0.50,
    50e-6,
    0.35,
    "decoding of one stream by llama.cpp, Q4_K_M; prompts are a guess",
    (0.7e9, 18.3e9),
)
_EPYC = Attainment(
    0.82,
    0.50,
    270e-6,
    0.35,
    "decoding of one stream by llama.cpp, Phi-4; prompts are a guess",
    (9e9, 16e9),
)

DEVICES = {
    device.name: device
    for device in (
        Device(
            "h100-sxm", 80 * _GIB, 3350e9,
            {"float32": 67e12, "bfloat16": 989e12, "int8": 1979e12}, 700, 2.69, _HOPPER,
            f"NVIDIA H100 data sheet; {_PRICES}",
        ),
        Device(
            "h200-sxm", 141 * _GIB, 4800e9,
            {"float32": 67e12, "bfloat16": 989e12, "int8": 1979e12}, 700, 3.59, _HOPPER,
            f"NVIDIA H200 data sheet; {_PRICES}; attainment of the H100",
        ),
        Device(
            "a100-sxm-80gb", 80 * _GIB, 2039e9,
            {"float32": 19.5e12, "bfloat16": 312e12, "int8": 624e12}, 400, 1.39, _AMPERE,
            f"NVIDIA A100 data sheet; {_PRICES}",
        ),
        Device(
            "l40s", 48 * _GIB, 864e9,
            {"float32": 91.6e12, "bfloat16": 362e12, "int8": 733e12}, 350, 0.79, _ADA,
            f"NVIDIA L40S data sheet; {_PRICES}",
        ),
        Device(
            "l4", 24 * _GIB, 300e9,
            {"float32": 30.3e12, "bfloat16": 121e12, "int8": 242e12}, 72, 0.44, _ADA,
            f"NVIDIA L4 data sheet; {_PRICES}; attainment of the L40S",
        ),
        Device(
            "rtx-4090", 24 * _GIB, 1008e9,
            {"float32": 82.6e12, "bfloat16": 165.2e12, "int8": 660.6e12}, 450, 0.34, _GEFORCE,
            f"NVIDIA Ada architecture white paper; {_PRICES}",
        ),
        Device(
            "rtx-3090", 24 * _GIB, 936e9,
            {"float32": 35.6e12, "bfloat16": 71e12, "int8": 284e12}, 350, 0.22, _GEFORCE,
            f"NVIDIA Ampere GA102 white paper; {_PRICES}; attainment of the RTX 4090",
        ),
        Device(
            "epyc-9554", 192 * _GIB, 460.8e9,
            {"float32": 6.3e12, "bfloat16": 12.7e12, "int8": 25.4e12}, 360, None, _EPYC,
            "AMD EPYC 9554 data sheet; arithmetic: 64 cores at 3.1 GHz with AVX-512",
        ),
    )
}  # fmt: skip
