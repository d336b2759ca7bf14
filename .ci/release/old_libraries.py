"""Libraries to link a wheel with, so that it runs on systems older than the one that builds it.

    old_libraries.py FOLDER [--compiler aarch64-linux-gnu-g++]

For each library that every Linux has (glibc's, libstdc++, libgcc_s) a stub is made of the
compiler's own one: the same symbols, in the newest version that manylinux_2_28 permits, and no
code. What is newer is in no stub, so that the linker takes it from `since_2_28.cpp` (glibc) or from
the static libstdc++, as Red Hat's developer toolsets do; exceptions still pass between modules, as
what throws and catches them stays shared. Link modules with `-LFOLDER`, then look with --check
MODULE... for symbols that no old library has.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TAG = "manylinux_2_28"

NEWEST = {
    "GLIBC": (2, 28),
    "GLIBCXX": (3, 4, 24),
    "CXXABI": (1, 3, 11),
    "GCC": (7, 0, 0),
}
"""The newest versions of symbols that the tag permits (PEP 600 and auditwheel's policy)."""

LIBRARIES = {
    "libstdc++.so.6": "libstdc++.so",
    "libm.so.6": "libm.so",
    "libgcc_s.so.1": "libgcc_s.so",
    "libc.so.6": "libc.so",
}
"""Names at run time, and those the linker looks for."""

MERGED = {
    "libpthread.so.0": r"pthread_|sem_|__pthread_",
    "libdl.so.2": r"dl(open|sym|close|error|addr)",
}
"""Libraries that glibc 2.34 made part of libc.so.6, with patterns of their functions."""

_SYMBOL = re.compile(
    r"^[0-9a-f]+ (?P<bind>.)(?:.{4})(?P<kind>.{2}) (?P<section>\S+)\s+(?P<size>[0-9a-f]+)\s+"
    r"(?P<version>\(?[\w.+]+\)?)\s+(?:\.\w+ |0x\w+ )?\s*(?P<name>\S+)$"
)


@dataclass(frozen=True)
class Symbol:
    """What a library exports under one name."""

    name: str
    version: str
    data: bool
    size: int
    default: bool


def permitted(version: str) -> tuple[int, ...] | None:
    """A version's numbers, or None where the tag does not permit it."""
    family, _, number = version.partition("_")
    if family not in NEWEST or not re.fullmatch(r"[\d.]+", number):
        return None
    numbers = tuple(int(part) for part in number.split("."))
    return numbers if numbers <= NEWEST[family] else None


def exported(library: Path) -> dict[str, Symbol]:
    """By name, the newest permitted version of what a library defines for new programs.

    A symbol of which no version is the default is there for old programs alone. The linker takes
    it from elsewhere: libgcc.a's processor features can be asked before relocations are done.
    """
    done = subprocess.run(["objdump", "-T", library], capture_output=True, text=True, check=True)
    best: dict[str, Symbol] = {}
    linked: set[str] = set()
    for line in done.stdout.splitlines():
        found = _SYMBOL.match(line.rstrip())
        if found is None or found["section"] in ("*UND*", "*ABS*", ".tdata", ".tbss"):
            continue
        if not found["version"].startswith("("):
            linked.add(found["name"])
        version = found["version"].strip("()")
        numbers = permitted(version)
        if numbers is None:
            continue
        one = Symbol(
            found["name"],
            version,
            found["kind"].strip() == "DO",
            int(found["size"], 16),
            not found["version"].startswith("("),
        )
        known = best.get(one.name)
        if known is None or permitted(known.version) < numbers:  # type: ignore[operator]
            best[one.name] = one
    return {name: one for name, one in best.items() if name in linked}


def make_stub(compiler: str, folder: Path, name: str, symbols: list[Symbol]) -> None:
    """A library of symbols without code."""
    lines = [".text"]
    for one in symbols:
        kind = "object" if one.data else "function"
        section = ".data" if one.data else ".text"
        lines += [f"{section}", f'.globl "{one.name}"', f'.type "{one.name}",%{kind}']
        lines += [f'"{one.name}": .skip {max(one.size, 1) if one.data else 4}']
        lines += [f'.size "{one.name}",{max(one.size, 1)}'] if one.data else []
    source, script = folder / f"{name}.s", folder / f"{name}.map"
    source.write_text("\n".join(lines) + "\n")
    versions: dict[str, list[str]] = {}
    for one in symbols:
        versions.setdefault(one.version, []).append(f'"{one.name}";')
    script.write_text("".join(f"{v} {{ {' '.join(names)} }};\n" for v, names in versions.items()))
    options = ["-shared", "-nostdlib", f"-Wl,-soname,{name}", f"-Wl,--version-script,{script}"]
    subprocess.run([compiler, *options, "-o", folder / name, source], check=True)
    source.unlink()
    script.unlink()


def path_of(compiler: str, name: str) -> Path:
    """The file that a compiler would link."""
    command = [compiler, f"-print-file-name={name}"]
    found = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    if not found.is_absolute():
        sys.exit(f"{compiler} has no {name}")
    return found.resolve()


def make(folder: Path, compiler: str) -> None:
    """The folder for -L."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in LIBRARIES:
        symbols = exported(path_of(compiler, name))
        if name == "libc.so.6":
            for other, pattern in MERGED.items():
                inside = [one for n, one in symbols.items() if re.match(pattern, n)]
                make_stub(compiler, folder, other, [one for one in inside if not one.default])
                symbols = {n: one for n, one in symbols.items() if one.default or one not in inside}
        make_stub(compiler, folder, name, list(symbols.values()))
    since, compiled = folder / "libsince_2_28.a", folder / "since_2_28.o"
    source = Path(__file__).with_name("since_2_28.cpp")
    options = ["-O2", "-fPIC", "-fno-threadsafe-statics", "-c", source, "-o", compiled]
    subprocess.run([compiler, *options], check=True)
    subprocess.run(["ar", "rcsD", since, compiled], check=True)
    nonshared = path_of(compiler, "libc_nonshared.a")
    # As the linker's names for them: scripts that say where else to look.
    static = path_of(compiler, "libstdc++.a")
    scripts = {
        "libstdc++.so": f"INPUT({folder}/libstdc++.so.6 {static})",
        "libm.so": f"INPUT({folder}/libm.so.6)",
        "libgcc_s.so": f"GROUP({folder}/libgcc_s.so.1 {path_of(compiler, 'libgcc.a')})",
    }
    merged = " ".join(f"{folder}/{name}" for name in MERGED)
    scripts["libc.so"] = f"GROUP({since} {folder}/libc.so.6 {nonshared} AS_NEEDED({merged}))"
    for name, text in scripts.items():
        (folder / name).write_text(text + "\n")


def missing(module: Path) -> list[str]:
    """Symbols of a module that are Python's neither, nor in a permitted version."""
    done = subprocess.run(["objdump", "-T", module], capture_output=True, text=True, check=True)
    found = []
    for line in done.stdout.splitlines():
        if "*UND*" not in line:
            continue
        *fields, version, name = line.split()
        version = version.strip("()")
        if version == "Base" or version[0].isdigit():  # none: the field before the name is a size
            if fields[1] != "w" and not re.match(r"_?Py", name):
                found.append(name)
        elif permitted(version) is None:
            found.append(f"{name}@{version}")
    return found


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--check", type=Path, nargs="+", default=[])
    asked = parser.parse_args()
    if asked.folder is not None:
        make(asked.folder.absolute(), asked.compiler)
    status = 0
    for module in asked.check:
        for symbol in missing(module):
            print(f"{module.name} needs {symbol}, which {TAG} does not have", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
