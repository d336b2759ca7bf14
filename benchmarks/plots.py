"""The roofline and growth plots of docs/, drawn by matplotlib in an environment of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import harness
import kernels
import peers

SCRIPT = Path(__file__).resolve().with_name("workers") / "draw_plots.py"


def draw(results: dict[str, Any]) -> None:
    """Write docs/roofline.svg, and this kind of machine's growth plot into docs/side_by_side.

    Says so and writes nothing when matplotlib cannot be had.
    """
    measured: dict[str, Any] = {}
    if kernels.RESULT.exists():
        measured["kernels"] = json.loads(kernels.RESULT.read_text())
    if "growth" in results:
        measured["growth"] = results["growth"]["measured"]
    try:
        python = peers.install(peers.PEERS / "plots", ["matplotlib"])
    except peers.PeerMissing as missing:
        print(f"no plots: {missing}")
        return
    docs = harness.DOC.parent
    paths = (
        docs / "roofline.svg",
        docs / "side_by_side" / f"{harness.machine_kind()}-growth.svg",
    )
    subprocess.run([python, SCRIPT, *paths], input=json.dumps(measured), text=True, check=True)
