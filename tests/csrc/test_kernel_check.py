"""Every kernel of every table, those emulated too, against double precision (`csrc/tests`).

The tables that the package has are checked as they were built for it; what emulates others is
compiled here, so that a table no machine at hand can run is at least known to compile.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "kernel_check"
EMULATED = ("avxvnni", "avx512bw", "avx512", "avx512bf16", "amx-avx512")
CANNOT_RUN = 2

pytestmark = [pytest.mark.xdist_group("kernel_check"), pytest.mark.timeout(1500)]


def _done(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def program() -> Path:
    """The check, linked with the archive that the installed core is made of, if there is one."""
    folders = (str(Path(sys.executable).parent), os.environ["PATH"])
    cmake = shutil.which("cmake", path=os.pathsep.join(folders))
    assert cmake, "no cmake: `make test-install` installs one"
    configure = [cmake, "-S", str(ROOT / "csrc" / "tests"), "-B", str(BUILD)]
    configure += ["-DTIDEMILL_KERNEL_OPTIMIZE=-O1", "-DCMAKE_CXX_FLAGS_RELEASE=-O1"]
    built = sorted((ROOT / "build").glob("cp*/libtidemill_core.a"), key=lambda f: f.stat().st_mtime)
    configure.append(f"-DTIDEMILL_CORE={built[-1] if built else ''}")
    for command in configure, [cmake, "--build", str(BUILD), "--target", "kernel_check"]:
        done = _done(command)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return BUILD / "kernel_check"


def test_every_table_this_machine_runs(program: Path) -> None:
    done = _done([str(program)])
    assert done.returncode == 0, done.stdout
    assert "portable checked, 0 failures so far" in done.stdout


@pytest.mark.parametrize("isa", EMULATED)
def test_emulated_table(program: Path, isa: str) -> None:
    done = _done([str(program), f"{isa}-emulated"])
    if done.returncode == CANNOT_RUN and "cannot run here" in done.stdout:
        return  # no AVX2 to emulate with: its compilation was the test
    assert done.returncode == 0, done.stdout
    assert "0 failures" in done.stdout
