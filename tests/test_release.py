"""Releases: their notes, bill of materials, build script, and the workflows that run them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
RELEASE = ROOT / ".ci" / "release"
WORKFLOWS = [*(ROOT / ".github" / "workflows").glob("*.yml"), ROOT / ".gitlab-ci.yml"]


def tool(name: str) -> ModuleType:
    """A script of .ci/release as a module."""
    spec = importlib.util.spec_from_file_location(f"release_{name}", RELEASE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


notes, sbom = tool("notes"), tool("sbom")
old_libraries, clean_room = tool("old_libraries"), tool("clean_room")


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def test_the_newest_section_of_the_changes_is_of_this_version() -> None:
    found = notes.sections((ROOT / "CHANGELOG.md").read_text())
    assert next(iter(found)) == project()["version"] == notes.version()


def test_tag_version_and_changes_agree_or_there_is_no_release() -> None:
    text = "# Changes\n\n## 1.2.0 (2027-01-02)\n\n- new\n\n## 1.1.0 (2026-01-01)\n\n- old\n"
    assert notes.notes_of("v1.2.0", text, "1.2.0") == "- new"
    for tag, changed, version in (
        ("v1.2.0", text, "1.3.0"),
        ("1.2.0", text, "1.2.0"),
        ("v1.3.0", text, "1.3.0"),
        ("v1.2.0", text.replace("2027-01-02", "unreleased"), "1.2.0"),
    ):
        with pytest.raises(ValueError):
            notes.notes_of(tag, changed, version)


def test_the_licence_is_there_in_full() -> None:
    assert project()["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "TERMS AND CONDITIONS FOR USE" in text and "END OF TERMS AND CONDITIONS" in text
    assert all((ROOT / name).is_file() for name in project()["license-files"])


def test_every_licence_is_permitted_and_on_the_page() -> None:
    page = (ROOT / "docs" / "licences.md").read_text()
    listed = dict(re.findall(r"^\| (\S+) \| (.*?) \|", page, re.MULTILINE))
    needed = {canonicalize_name(Requirement(text).name) for text in project()["dependencies"]}
    assert needed <= listed.keys()
    for part in sbom.inside():
        assert listed[part.name] == part.licence
    for name, licence in listed.items():
        assert name == "package" or not sbom.forbidden(licence), name


@pytest.mark.parametrize(
    ("licence", "wrong"),
    [
        ("MIT", False),
        ("MIT AND PSF-2.0", False),
        ("GPL-3.0-only OR MIT", False),
        ("(Apache-2.0 OR GPL-2.0-only)", False),
        ("Apache-2.0 WITH LLVM-exception", False),
        ("MIT AND GPL-3.0-only", True),
        ("AGPL-3.0-or-later", True),
        ("unknown", True),
        ("", True),
    ],
)
def test_which_licences_are_permitted(licence: str, wrong: bool) -> None:
    assert sbom.forbidden(licence) is wrong


def test_licences_are_read_as_packages_say_them(tmp_path: Path) -> None:
    cases = {
        "License-Expression: MIT AND PSF-2.0": "MIT AND PSF-2.0",
        "License: BSD License": "BSD-3-Clause",
        "License: UNKNOWN\nClassifier: License :: OSI Approved :: MIT License": "MIT",
        "Classifier: License :: OSI Approved :: Apache Software License": "Apache-2.0",
        "License: MIT License\n        \n        Copyright somebody": "MIT",
        "Summary: nothing": "unknown",
    }
    for number, (lines, licence) in enumerate(cases.items()):
        folder = tmp_path / f"p{number}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: p{number}\n{lines}\n")
        assert sbom.licence_of(metadata.PathDistribution(folder)) == licence, lines


def test_the_bill_is_whole_and_always_the_same(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    wheel.write_bytes(b"abc")
    parts = [*sbom.installed("starlette").values(), *sbom.inside()]
    bill = sbom.document(parts, wheel, 86400)
    assert bill == sbom.document(parts, wheel, 86400)
    assert bill["metadata"]["timestamp"] == "1970-01-02T00:00:00Z"
    assert bill["metadata"]["component"]["hashes"][0]["content"].startswith("ba7816bf")
    listed = {one["bom-ref"]: one for one in bill["components"]}
    assert any(ref.startswith("pkg:pypi/anyio@") for ref in listed)
    assert any(ref.startswith("pkg:npm/%40preact/signals@") for ref in listed)
    known = {*listed, bill["metadata"]["component"]["bom-ref"]}
    for one in bill["dependencies"]:
        assert one["ref"] in known and set(one["dependsOn"]) <= known
    assert len(bill["dependencies"]) == len(parts)
    json.dumps(bill)


def test_a_release_is_built_of_the_commit_alone(tmp_path: Path) -> None:
    """The build script, with a Python that writes down what it is asked."""
    fake = tmp_path / "python"
    fake.write_text(
        "#!/usr/bin/env bash\nset -e\n"
        'case "$2" in\n'
        'build) mkdir -p "$4"; echo "$SOURCE_DATE_EPOCH $CXXFLAGS" > "$4/t.tar.gz"\n'
        'ls "$5" > "$4/t.whl";;\n'
        'zipfile) mkdir -p "$5"; cp "$4" "$5/t.so";;\n'
        '*auditwheel*) echo "$3 $6" > "$9/plat"; cp "${10}" "$9";;\n'
        "esac\n"
        'case "$1 $2" in\n'
        '*/old_libraries.py*--check) echo checked "$(basename "$3")" >&2;;\n'
        '*/old_libraries.py*) case "$CMAKE_ARGS" in *"$2"*) exit 1;; esac;;\n'
        "esac\n"
    )
    fake.chmod(0o755)
    out = tmp_path / "dist"
    done = subprocess.run(
        [RELEASE / "build.sh", out],
        env={**os.environ, "PYTHON": str(fake), "SOURCE_DATE_EPOCH": "5", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "checked t.so" in done.stderr
    machine, tag = (out / "plat").read_text().split()
    assert tag == f"manylinux_2_28_{machine}"
    (out / "plat").unlink()
    epoch, flag = (out / "t.tar.gz").read_text().split()
    assert epoch == "5" and flag.startswith(f"-ffile-prefix-map={tmp_path}/")
    names = (out / "t.whl").read_text().split()
    assert "pyproject.toml" in names and ".git" not in names and "build" not in names
    assert len(done.stdout.splitlines()) == 2  # the digests
    assert [path.name for path in tmp_path.iterdir()].count("dist") == len(
        [path for path in tmp_path.iterdir() if path.is_dir()]
    )  # what was unpacked is gone


_NEWER_THAN_THE_TAG = """
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <vector>
#ifdef __x86_64__  // chosen while the module is loaded, by functions that must not need it loaded
__attribute__((target_clones("avx2", "default")))
#endif
int doubled(int x) { return 2 * x; }
extern "C" int waits(double x) {
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_lock<std::mutex> lock(mutex);
  try {
    if (x == 7) throw std::bad_alloc();
    std::vector<double> values(static_cast<size_t>(std::exp(x)));
    return changed.wait_for(lock, std::chrono::milliseconds(1), [&] { return values.empty(); });
  } catch (...) {
    std::exception_ptr thrown = std::current_exception(), again = thrown;
    return again ? doubled(1) : 3;
  }
}
"""


def test_modules_run_on_an_older_system_than_the_one_that_builds(tmp_path: Path) -> None:
    """What newer headers bring in is linked, all else is asked for in versions of the tag."""
    source, old = tmp_path / "m.cpp", tmp_path / "old"
    source.write_text(_NEWER_THAN_THE_TAG)
    build = ["g++", "-std=c++20", "-O2", "-shared", "-fPIC", source]
    hide = "-Wl,--exclude-libs,libstdc++.a:libc_nonshared.a"
    old_libraries.make(old, "g++")
    subprocess.run([*build, "-o", tmp_path / "own.so"], check=True, timeout=120)
    subprocess.run([*build, f"-L{old}", hide, "-o", tmp_path / "old.so"], check=True, timeout=120)
    assert old_libraries.missing(tmp_path / "old.so") == []
    versions = re.findall(r"\(GLIBC_2\.(\d+)", objdump(tmp_path / "old.so"))
    assert versions and max(map(int, versions)) <= 28
    if any(
        int(minor) > 28 for minor in re.findall(r"\(GLIBC_2\.(\d+)", objdump(tmp_path / "own.so"))
    ):
        assert old_libraries.missing(tmp_path / "own.so") != []
    ask = "import ctypes, sys; c = ctypes.CDLL(sys.argv[1]).waits; c.argtypes = [ctypes.c_double];"
    ask += "print(c(1.0), c(7.0))"
    command = [sys.executable, "-c", ask, tmp_path / "old.so"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "0 2\n"  # waits until the time is over; what is thrown is caught


def objdump(module: Path) -> str:
    """The dynamic symbols of a module."""
    command = ["objdump", "-T", module]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_permitted_versions_of_symbols() -> None:
    assert old_libraries.permitted("GLIBC_2.28") == (2, 28)
    assert old_libraries.permitted("GLIBCXX_3.4.24") and old_libraries.permitted("CXXABI_1.3.11")
    for version in ("GLIBC_2.29", "GLIBCXX_3.4.25", "GLIBC_PRIVATE", "Base", "CXXABI_1.3.12"):
        assert old_libraries.permitted(version) is None, version


def test_a_clean_room_builds_with_what_the_project_builds_with() -> None:
    system = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    assert list(clean_room.BUILD) == system["requires"]


def shell_parts(document: Any) -> list[str]:
    """Every piece of shell of a workflow of GitHub or GitLab."""
    if isinstance(document, dict):
        own = [document["run"]] if isinstance(document.get("run"), str) else []
        script = document.get("script")
        own += ["\n".join(script)] if isinstance(script, list) else []
        return own + [part for value in document.values() for part in shell_parts(value)]
    if isinstance(document, list):
        return [part for value in document for part in shell_parts(value)]
    return []


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflows_run_what_there_is(file: Path) -> None:
    parts = shell_parts(yaml.safe_load(file.read_text()))
    assert parts
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for part in parts:
        subprocess.run(["bash", "-n", "-c", part], check=True, timeout=10)
        for script in re.findall(r"(?<!\S)\.ci/\S+", part):
            assert (ROOT / script).is_file(), script
        for target in re.findall(r"(?:^|sudo )make ([\w-]+)", part, re.MULTILINE):
            assert target in targets, target
    assert "${{ github.event" not in file.read_text()  # nobody's text becomes shell


@pytest.mark.parametrize("script", sorted(RELEASE.glob("*.sh")), ids=lambda file: file.name)
def test_scripts_are_shell(script: Path) -> None:
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=10)
