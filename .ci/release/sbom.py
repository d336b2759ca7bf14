"""The bill of materials of an installation (CycloneDX 1.6), and the licences of what it needs.

Run by the Python of an environment that has tidemill: `sbom.py --out FILE` writes the document,
`--licences` writes the table of docs/licences.md anew, `--check` fails where a licence is none of
`PERMITTED`. What is inside the wheel itself (the page's libraries, nanobind) is listed, too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "licences.md"
_MARKS = re.compile(r"(<!-- licences -->\n).*?(<!-- end -->)", re.DOTALL)

# SPDX identifiers under which tidemill may be passed on together with its dependencies.
PERMITTED = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "HPND", "ISC", "MIT"),
    *("MIT-0", "MPL-2.0", "PSF-2.0", "Python-2.0", "Unlicense", "Zlib", "LLVM-exception"),
    "Apache-2.0 WITH LLVM-exception",
}
# What packages write where they name no SPDX expression.
_SAID = {
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache-2": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause",
    "mit license": "MIT",
    "the mit license (mit)": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}


@dataclass
class Component:
    """Something that a release consists of.

    Attributes:
        kind: of package: ``pypi`` or ``npm``.
        name: as its registry has it.
        version: its version.
        licence: an SPDX expression, or what the package says.
        inside: whether the wheel itself contains it.
        needs: names of other components of its kind.
    """

    kind: str
    name: str
    version: str
    licence: str
    inside: bool = False
    needs: list[str] = field(default_factory=list)

    @property
    def purl(self) -> str:
        """Its package URL."""
        return f"pkg:{self.kind}/{self.name.replace('@', '%40')}@{self.version}"


def installed(name: str = "tidemill", extras: tuple[str, ...] = ()) -> dict[str, Component]:
    """What an installed package needs, directly and further on, itself first; by canonical name."""
    found: dict[str, Component] = {}
    waiting = [(canonicalize_name(name), extras)]
    done = set()
    while waiting:
        one = waiting.pop(0)
        if one in done:
            continue
        done.add(one)
        package, wanted = one
        distribution = metadata.distribution(package)
        component = found.setdefault(
            package,
            Component("pypi", package, distribution.version, licence_of(distribution)),
        )
        for text in distribution.requires or ():
            requirement = Requirement(text)
            if _applies(requirement, wanted):
                needed = canonicalize_name(requirement.name)
                if needed not in component.needs:
                    component.needs.append(needed)
                waiting.append((needed, tuple(sorted(requirement.extras))))
    return found


def _applies(requirement: Requirement, extras: tuple[str, ...]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def licence_of(distribution: metadata.Distribution) -> str:
    """The licence that a package states, as SPDX where that is clear."""
    about = distribution.metadata
    if expression := about.get("License-Expression"):
        return expression
    said = (about.get("License") or "").strip()
    if said and "\n" not in said and len(said) <= 60 and said.lower() != "unknown":
        return _SAID.get(said.lower(), said)
    names = [
        line.rpartition(" :: ")[2]
        for line in about.get_all("Classifier") or ()
        if line.startswith("License :: ") and line != "License :: OSI Approved"
    ]
    return " AND ".join(_SAID.get(one.lower(), one) for one in names) or _from_text(said)


def _from_text(text: str) -> str:
    return "MIT" if text.startswith(("MIT License", "The MIT License")) else "unknown"


def inside() -> Iterator[Component]:
    """What the wheel contains of others: the libraries of the page, and nanobind's glue."""
    lock = json.loads((ROOT / "webui" / "package-lock.json").read_text())["packages"]
    waiting = list(lock[""]["dependencies"])
    done = set()
    while waiting:
        name = waiting.pop(0)
        if name in done:
            continue
        done.add(name)
        one = lock[f"node_modules/{name}"]
        waiting += one.get("dependencies", {})
        yield Component(
            *("npm", name, one["version"], one.get("license", "unknown"), True),
            needs=[*one.get("dependencies", {})],
        )
    backend = metadata.distribution("nanobind-backend")
    yield Component("pypi", "nanobind", backend.version, "BSD-3-Clause", True)


def forbidden(licence: str) -> bool:
    """Whether no reading of an expression is permitted."""
    choices = [part for part in re.split(r"\s+OR\s+|/", licence.replace("(", "").replace(")", ""))]
    return not any(
        all(one.strip() in PERMITTED for one in re.split(r"\s+AND\s+|,", choice))
        for choice in choices
    )


def document(parts: list[Component], wheel: Path | None, epoch: int) -> dict[str, Any]:
    """The bill; the first component is the release itself."""
    main, *others = parts
    known = {(part.kind, part.name): part.purl for part in parts}
    described = [_described(part) for part in others]
    about = _described(main) | {"type": "application"}
    if wheel is not None:
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        about["hashes"] = [{"alg": "SHA-256", "content": digest}]
    depends = [
        {
            "ref": part.purl,
            "dependsOn": sorted(known[part.kind, n] for n in part.needs if (part.kind, n) in known),
        }
        for part in parts
    ]
    body = {"components": described, "dependencies": depends}
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([about, body], sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": about,
        },
        **body,
    }


def _described(part: Component) -> dict[str, Any]:
    simple = re.fullmatch(r"[\w.+-]+", part.licence) and part.licence in PERMITTED
    if simple:
        licences: list[dict[str, Any]] = [{"license": {"id": part.licence}}]
    elif not forbidden(part.licence):
        licences = [{"expression": part.licence}]
    else:
        licences = [{"license": {"name": part.licence}}]
    found = {
        "type": "library",
        "bom-ref": part.purl,
        "name": part.name,
        "version": part.version,
        "purl": part.purl,
        "licenses": licences,
    }
    if part.inside:
        found["properties"] = [{"name": "tidemill:inside", "value": "true"}]
    return found


def table(parts: list[Component]) -> str:
    """The table of docs/licences.md, without versions: these change without notice."""
    lines = ["| package | licence | |", "|---|---|---|"]
    for part in sorted(parts, key=lambda part: (part.inside, part.name.lower())):
        where = f"in the wheel ({part.kind})" if part.inside else ""
        lines.append(f"| {part.name} | {part.licence} | {where} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the bill there")
    parser.add_argument("--wheel", type=Path, help="whose digest the bill has")
    parser.add_argument("--extra", action="append", default=[], help="an extra that is counted")
    parser.add_argument("--licences", action="store_true", help="write the table of the page")
    parser.add_argument("--check", action="store_true", help="fail on a licence not permitted")
    asked = parser.parse_args()
    parts = [*installed(extras=tuple(asked.extra)).values(), *inside()]
    if asked.out is not None:
        epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
        bill = document(parts, asked.wheel, epoch)
        asked.out.write_text(json.dumps(bill, indent=1, ensure_ascii=False) + "\n")
    if asked.licences:
        text = PAGE.read_text()
        PAGE.write_text(_MARKS.sub(lambda m: m[1] + table(parts[1:]) + m[2], text))
    wrong = [part for part in parts if forbidden(part.licence)]
    for part in wrong:
        print(f"{part.name} {part.version}: {part.licence!r} is not permitted", file=sys.stderr)
    return 1 if asked.check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
