"""Costs after a 0.6B model on two cores, for simulations."""

from __future__ import annotations

from typing import Any

from tidemill.simulate.costs import (
    Costs,
    EngineFacts,
    HostSeconds,
    MachineFacts,
    Measured,
    Residuals,
    StepSeconds,
)

STEP = StepSeconds(
    tokens=((1.0, 0.010), (8.0, 0.012), (64.0, 0.030), (512.0, 0.200)),
    projection=0.004, sample=0.0002, pair=2e-8, reach=4e-7,
)  # fmt: skip
HOST = HostSeconds(
    step=0.0004, row=2e-5, submit=1e-4, request=0.003, prompt_token=1e-6, deliver=0.0005,
    chunk=1e-4,
)  # fmt: skip


def costs(*, ratios: tuple[float, ...] = (0.95, 1.0, 1.05), **sizes: Any) -> Costs:
    """Costs of an engine of these sizes (`EngineFacts`)."""
    known: dict[str, Any] = {
        "model": "small", "block_size": 32, "num_blocks": 2048, "max_model_len": 8192, "layers": 28,
    }  # fmt: skip
    return Costs(
        engine=EngineFacts(**{**known, **sizes}),
        machine=MachineFacts(processor="two cores", cores=2),
        step=STEP,
        host=HOST,
        residuals=Residuals(steps=1000, ratios=ratios),
        measured=Measured(tokens=512, pairs=4e6, reach=3e5, samples=64),
    )
