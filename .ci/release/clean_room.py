"""A built wheel as a stranger has it: a fresh Debian, no compiler, no network, another user.

    clean_room.py WHEEL [--suite bookworm] [--suite trixie] [--sdist FILE]

For each suite a root is made with mmdebstrap (Debian's python3 and python3-venv alone). In it, as
a user without rights and in a folder with spaces and umlauts, the wheel is installed from a folder
of wheels, the installation is made read-only, and the bundled model answers twice and over HTTP.
What it took and weighs is printed as a table in Markdown. Needs root, mmdebstrap, and pip with an
index for the dependencies. With --sdist the wheel is built again from that, in a root that has a
compiler, which says whether it builds from what its requirements bring (minutes).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

USER = 12345
FOLDER = "home/Jörg Müller/ein Ordner"
SECONDS = 20.0
"""In which the first answer must have come, the installation included."""

MEGABYTES = 100.0
"""That all wheels together may have, tidemill's included."""

_HEAD = (
    "| Debian | Python | install, s | first answer, s | second, s | wheels, MB | installed, MB |\n"
    "|---|---|---|---|---|---|---|"
)

# Answers of a started server, and its end; run by the environment's own Python.
_OVER_HTTP = """
import json, subprocess, sys, time, urllib.request
server = subprocess.Popen([sys.argv[1], "serve", "--port", "18431"], stderr=subprocess.DEVNULL)
url = "http://127.0.0.1:18431"
try:
    for _ in range(600):
        try:
            urllib.request.urlopen(url + "/readyz", timeout=5)
            break
        except OSError:
            time.sleep(0.05)
    message = {"role": "user", "content": "What is the capital of France?"}
    body = json.dumps({"messages": [message], "temperature": 0}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url + "/v1/chat/completions", body, headers)
    print(urllib.request.urlopen(request, timeout=60).read().decode())
finally:
    server.terminate()
    server.wait(30)
"""


@dataclass
class Found:
    """What one room showed."""

    suite: str
    python: str
    install: float
    first: float
    second: float
    download: float
    installed: float

    def row(self) -> str:
        """A line of the table."""
        return (
            f"| {self.suite} | {self.python} | {self.install:.1f} | {self.first:.1f} | "
            f"{self.second:.1f} | {self.download:.0f} | {self.installed:.0f} |"
        )


class Room:
    """A root in which commands run as a user without rights."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / FOLDER

    def run(self, *command: str, user: int = USER, seconds: float = 300) -> str:
        """Output of a command inside; its failure ends the program.

        Its network is loopback alone.
        """
        inside = {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": f"/{FOLDER}/home",
            "LANG": "C.UTF-8",
        }
        chroot = ["chroot", f"--userspec={user}:{user}", str(self.root), *command]
        setup = 'ip link set lo up 2>/dev/null || true; exec "$@"'
        done = subprocess.run(
            ["unshare", "--net", "sh", "-c", setup, "sh", *chroot],
            env=inside,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        if done.returncode:
            sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        return done.stdout

    def timed(self, *command: str) -> tuple[float, str]:
        """Seconds and output of a command."""
        began = time.monotonic()
        said = self.run(*command)
        return time.monotonic() - began, said


@contextlib.contextmanager
def room(suite: str, packages: str, kept: Path | None) -> Iterator[Room]:
    """A root of a suite of Debian; `kept` is a folder of roots that were made before."""
    with tempfile.TemporaryDirectory(prefix="clean-room-") as made:
        root = Path(made) / suite
        if kept is not None and (kept / suite).is_dir():
            shutil.copytree(kept / suite, root, symlinks=True, ignore=_devices)
        else:
            options = ["--variant=minbase", f"--include={packages}"]
            subprocess.run(["mmdebstrap", "--quiet", *options, suite, str(root)], check=True)
        (root / "proc").mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "proc", "proc", str(root / "proc")], check=True)
        subprocess.run(["mount", "--rbind", "/dev", str(root / "dev")], check=True)
        try:
            yield Room(root)
        finally:
            for mounted in ("proc", "dev"):
                subprocess.run(["umount", "--lazy", str(root / mounted)], check=True)


def _devices(folder: str, names: list[str]) -> list[str]:
    return names if Path(folder).name in ("dev", "proc", "sys") else []


def try_wheel(wheel: Path, suite: str, kept: Path | None) -> Found:
    """Install a wheel in a room and have it answer."""
    with room(suite, "python3,python3-venv", kept) as here:
        for compiler in ("cc", "gcc", "g++", "clang", "make"):
            assert not (here.root / "usr/bin" / compiler).exists(), f"{compiler} is in {suite}"
        wheels = here.folder / "wheels"
        (here.folder / "home").mkdir(parents=True)
        version = here.run("python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
        gather(wheel, wheels, version.strip())
        shutil.copy(wheel, wheels)
        for path in (here.folder, *here.folder.rglob("*")):
            os.chown(path, USER, USER)
        environment, inside = f"/{FOLDER}/die Umgebung", f"/{FOLDER}"
        here.run("python3", "-m", "venv", environment)
        before = _megabytes(here.folder / "die Umgebung")
        python, program = f"{environment}/bin/python", f"{environment}/bin/tidemill"
        offline = ("--no-index", "--find-links", f"{inside}/wheels", "--disable-pip-version-check")
        install, _ = here.timed(python, "-m", "pip", "install", "-q", *offline, "tidemill")
        installed = _megabytes(here.folder / "die Umgebung") - before
        _read_only(here.folder / "die Umgebung")
        question = ("run", "brook", "What is the capital of France?")
        first, said = here.timed(program, *question)
        second, again = here.timed(program, *question)
        served = here.run(python, "-c", _OVER_HTTP, program)
        for answer in (said, again, served):
            assert "Paris" in answer, answer
        sizes = _megabytes(wheels), installed
        return Found(suite, version.strip(), install, first, second, *sizes)


def gather(wheel: Path, into: Path, version: str) -> None:
    """Download the wheels of a wheel's dependencies for a version of Python."""
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in range(35, 4, -1)]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"),
            *("--only-binary=:all:", "--implementation=cp", f"--python-version={version}"),
            *(f"--abi=cp{version.replace('.', '')}", "--abi=abi3", "--abi=none"),
            *(*platforms, "--platform=manylinux2014_x86_64", "--platform=any"),
            *(f"--dest={into}", *requirements(wheel, version)),
        ],
        check=True,
    )


def requirements(wheel: Path, version: str) -> list[str]:
    """What a wheel requires without extras."""
    from zipfile import ZipFile

    from packaging.metadata import Metadata

    with ZipFile(wheel) as archive:
        [name] = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        found = Metadata.from_email(archive.read(name), validate=False)
    environment = {"python_version": version, "sys_platform": "linux", "extra": ""}
    return [
        f"{one.name}{'[' + ','.join(sorted(one.extras)) + ']' if one.extras else ''}{one.specifier}"
        for one in found.requires_dist or ()
        if one.marker is None or one.marker.evaluate(environment)
    ]


def try_sdist(sdist: Path, suite: str, kept: Path | None) -> None:
    """Build a wheel from an sdist, offline but for the wheels of its build requirements."""
    with room(suite, "python3,python3-venv,python3-dev,g++,cmake,ninja-build", kept) as here:
        here.folder.mkdir(parents=True)
        wheels = here.folder / "wheels"
        pip = (sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:")
        needed = ("scikit-build-core>=0.11", "nanobind>=3.1")
        subprocess.run([*pip, f"--dest={wheels}", *needed], check=True)
        shutil.copy(sdist, here.folder)
        for path in (here.folder, *here.folder.rglob("*")):
            os.chown(path, USER, USER)
        here.run("python3", "-m", "venv", f"/{FOLDER}/venv")
        began = time.monotonic()
        options = ("--no-index", "--no-deps", "--find-links", f"/{FOLDER}/wheels")
        source = f"/{FOLDER}/{sdist.name}"
        here.run(
            *(f"/{FOLDER}/venv/bin/python", "-m", "pip", "wheel", "-q", *options),
            *("-w", f"/{FOLDER}/out", source),
            seconds=7200,
        )
        print(f"{sdist.name} built in {suite} in {time.monotonic() - began:.0f} s")


def _megabytes(folder: Path) -> float:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files) / 1e6


def _read_only(folder: Path) -> None:
    """Root's, and nobody may write."""
    for path in (folder, *folder.rglob("*")):
        os.lchown(path, 0, 0)
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o222 | 0o444)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--suite", action="append")
    parser.add_argument("--roots", type=Path, help="folder with roots that are copied")
    parser.add_argument("--sdist", type=Path)
    asked = parser.parse_args()
    suites = asked.suite or ["bookworm", "trixie"]
    found = [try_wheel(asked.wheel.absolute(), suite, asked.roots) for suite in suites]
    print(_HEAD)
    for one in found:
        print(one.row(), flush=True)
    if asked.sdist is not None:
        try_sdist(asked.sdist.absolute(), suites[0], None)
    slow = [one for one in found if one.install + one.first > SECONDS]
    large = [one for one in found if one.download > MEGABYTES]
    for one in slow:
        print(f"{one.suite}: the first answer came after more than {SECONDS:.0f} s")
    for one in large:
        print(f"{one.suite}: the wheels have more than {MEGABYTES:.0f} MB")
    return 1 if slow or large else 0


if __name__ == "__main__":
    sys.exit(main())
