"""A built wheel as a stranger has it: a fresh Debian, no compiler, no network, another user.

    clean_room.py WHEEL [--suite bookworm] [--suite trixie] [--sdist FILE] [--python python3.12]

For each suite a root is made with mmdebstrap (Debian's python3 and python3-venv alone). In it, as
a user without rights and in a folder with spaces and umlauts, the wheel is installed from a folder
of wheels, the installation is made read-only, and the bundled model answers twice and over HTTP.
What it took and weighs is printed as a table in Markdown. Needs root, mmdebstrap, and pip with an
index for the dependencies. A wheel for aarch64 gets a root of that machine, whose programs run in
emulation (Debian's qemu-user-static). With --sdist the same is done with that, in a root that has
a compiler and no network, from its requirements alone (minutes). --python does it with a Python of
this machine instead of a root, as Debian has not every version; it may then find a compiler here.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
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
"""In which the first answer must have come, the installation included (not in emulation)."""

MEGABYTES = 100.0
"""That all wheels together may have, tidemill's included."""

BUILD = ("scikit-build-core>=0.11", "nanobind>=3.1")
"""What pyproject.toml builds with (a test compares)."""

_DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}

_HEAD = (
    "| system | Python | install, s | first answer, s | second, s | wheels, MB | installed, MB |\n"
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
    """A root in which commands run as a user without rights.

    Attributes:
        chroot: what changes into it; nothing, where the root is this machine's.
    """

    def __init__(self, root: Path, folder: str = FOLDER, *, chroot: bool = True) -> None:
        self.root = root
        self.folder = root / folder
        self.inside = f"/{folder}"
        self._chroot = chroot

    def run(self, *command: str, user: int = USER, seconds: float = 1800) -> str:
        """Output of a command inside; its failure ends the program.

        Its network is loopback alone.
        """
        inside = {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": f"{self.inside}/home",
            "LANG": "C.UTF-8",
        }
        root = ["chroot", f"--userspec={user}:{user}", str(self.root)]
        here = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        setup = 'ip link set lo up 2>/dev/null || true; exec "$@"'
        done = subprocess.run(
            [
                "unshare",
                "--net",
                "sh",
                "-c",
                setup,
                "sh",
                *(root if self._chroot else here),
                *command,
            ],
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
def room(suite: str, packages: str, kept: Path | None, machine: str = "") -> Iterator[Room]:
    """A root of a suite of Debian; `kept` is a folder of roots that were made before."""
    with tempfile.TemporaryDirectory(prefix="clean-room-") as made:
        root = Path(made) / suite
        if kept is not None and (kept / suite).is_dir():
            shutil.copytree(kept / suite, root, symlinks=True, ignore=_devices)
        else:
            options = ["--variant=minbase", f"--include={packages}"]
            options += [f"--architectures={_DEBIAN[machine]}"] if machine else []
            subprocess.run(["mmdebstrap", "--quiet", *options, suite, str(root)], check=True)
        (root / "proc").mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "proc", "proc", str(root / "proc")], check=True)
        subprocess.run(["mount", "--rbind", "/dev", str(root / "dev")], check=True)
        try:
            yield Room(root)
        finally:
            for mounted in ("proc", "dev"):
                subprocess.run(["umount", "--lazy", str(root / mounted)], check=True)


@contextlib.contextmanager
def folder_here() -> Iterator[Room]:
    """A folder of this machine, for a user without rights."""
    with tempfile.TemporaryDirectory(prefix="clean room ö ") as made:
        Path(made).chmod(0o755)
        yield Room(Path("/"), str(Path(made) / FOLDER).lstrip("/"), chroot=False)


def _devices(folder: str, names: list[str]) -> list[str]:
    return names if Path(folder).name in ("dev", "proc", "sys") else []


def try_wheel(wheel: Path, suite: str, kept: Path | None) -> Found:
    """Install a wheel in a room and have it answer."""
    machine = wheel.stem.split("_", 3)[-1] if "manylinux" in wheel.name else platform.machine()
    foreign = machine if machine != platform.machine() else ""
    with room(suite, "python3,python3-venv", kept, foreign) as here:
        for compiler in ("cc", "gcc", "g++", "clang", "make"):
            assert not (here.root / "usr/bin" / compiler).exists(), f"{compiler} is in {suite}"
        return answered(here, wheel, suite + (f", {machine} emulated" if foreign else ""), machine)


def answered(here: Room, package: Path, name: str, machine: str, python: str = "python3") -> Found:
    """Install a wheel or an sdist offline, make it read-only, and ask the bundled model."""
    wheels = here.folder / "wheels"
    (here.folder / "home").mkdir(parents=True)
    for path in (here.folder.parent, here.folder, here.folder / "home"):
        os.chown(path, USER, USER)
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    version = here.run(python, "-c", ask).strip()
    gather(package, wheels, version, machine)
    shutil.copy(package, wheels)
    for path in (here.folder, *here.folder.rglob("*")):
        os.chown(path, USER, USER)
    environment = f"{here.inside}/die Umgebung"
    here.run(python, "-m", "venv", environment)
    before = _megabytes(here.folder / "die Umgebung")
    python, program = f"{environment}/bin/python", f"{environment}/bin/tidemill"
    offline = ("--no-index", "--find-links", f"{here.inside}/wheels", "--disable-pip-version-check")
    install, _ = here.timed(python, "-m", "pip", "install", "-q", *offline, "tidemill")
    installed = _megabytes(here.folder / "die Umgebung") - before
    _read_only(here.folder / "die Umgebung")
    question = ("run", "brook", "What is the capital of France?")
    first, said = here.timed(program, *question)
    second, again = here.timed(program, *question)
    served = here.run(python, "-c", _OVER_HTTP, program)
    for answer in (said, again, served):
        assert "Paris" in answer, answer
    return Found(name, version, install, first, second, _megabytes(wheels), installed)


def gather(package: Path, into: Path, version: str, machine: str) -> None:
    """Download the wheels of a package's dependencies for a version of Python.

    For an sdist those of its build, too.
    """
    platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in range(36, 4, -1)]
    built = BUILD if package.name.endswith(".gz") else ()
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"),
            *("--only-binary=:all:", "--implementation=cp", f"--python-version={version}"),
            *(f"--abi=cp{version.replace('.', '')}", "--abi=abi3", "--abi=none"),
            *(*platforms, f"--platform=manylinux2014_{machine}", "--platform=any"),
            *(f"--dest={into}", *requirements(package, version), *built),
        ],
        check=True,
    )


def requirements(package: Path, version: str) -> list[str]:
    """What a wheel or an sdist requires without extras."""
    import tarfile
    from zipfile import ZipFile

    from packaging.metadata import Metadata

    if package.name.endswith(".gz"):
        with tarfile.open(package) as archive:
            inside = archive.extractfile(f"{package.name.removesuffix('.tar.gz')}/PKG-INFO")
            assert inside is not None
            text = inside.read()
    else:
        with ZipFile(package) as files:
            [name] = [n for n in files.namelist() if n.endswith(".dist-info/METADATA")]
            text = files.read(name)
    found = Metadata.from_email(text, validate=False)
    environment = {"python_version": version, "sys_platform": "linux", "extra": ""}
    return [
        f"{one.name}{'[' + ','.join(sorted(one.extras)) + ']' if one.extras else ''}{one.specifier}"
        for one in found.requires_dist or ()
        if one.marker is None or one.marker.evaluate(environment)
    ]


def try_sdist(sdist: Path, suite: str) -> Found:
    """Install an sdist where a compiler is, from its requirements alone, and have it answer."""
    packages = "python3,python3-venv,python3-dev,g++,cmake,ninja-build"
    with room(suite, packages, None) as here:
        return answered(here, sdist, f"{suite}, from source", platform.machine())


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
    parser.add_argument("--sdist", type=Path, help="also from this source, in the first suite")
    parser.add_argument(
        "--python", action="append", default=[], help="also a Python of this machine"
    )
    asked = parser.parse_args()
    suites = asked.suite or ["bookworm", "trixie"]
    wheel = asked.wheel.absolute()
    print(_HEAD)
    found = []
    for suite in suites:
        found.append(try_wheel(wheel, suite, asked.roots))
        print(found[-1].row(), flush=True)
    for python in asked.python:
        with folder_here() as here:
            found.append(answered(here, wheel, "virtual environment", platform.machine(), python))
        print(found[-1].row(), flush=True)
    if asked.sdist is not None:
        print(try_sdist(asked.sdist.absolute(), suites[0]).row(), flush=True)
    slow = [one for one in found if one.install + one.first > SECONDS and "emul" not in one.suite]
    large = [one for one in found if one.download > MEGABYTES]
    for one in slow:
        print(f"{one.suite}: the first answer came after more than {SECONDS:.0f} s")
    for one in large:
        print(f"{one.suite}: the wheels have more than {MEGABYTES:.0f} MB")
    return 1 if slow or large else 0


if __name__ == "__main__":
    sys.exit(main())
