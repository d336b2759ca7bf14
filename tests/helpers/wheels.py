"""Wheels that carry models, and an index of them."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence


def wheel(
    name: str,
    files: Mapping[str, bytes],
    version: str = "1.0",
    requires: Sequence[str] = (),
    licence: str | None = "MIT",
) -> tuple[str, bytes]:
    """A wheel's file name and content; `files`: path in its package -> content."""
    package = name.replace("-", "_")
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"License: {licence}"] if licence else []
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(f"{package}/{path}", content)
        archive.writestr(f"{package}-{version}.dist-info/METADATA", "\n".join(lines) + "\n\ntext")
    return f"{package}-{version}-py3-none-any.whl", out.getvalue()


def index_pages(
    packages: Mapping[str, Sequence[tuple[str, bytes]]], *, html: bool = False
) -> dict[str, bytes]:
    """Pages of an index at /simple: one per package, and its files."""
    pages: dict[str, bytes] = {}
    for name, wheels in packages.items():
        rows, links = [], []
        for file, content in wheels:
            digest = hashlib.sha256(content).hexdigest()
            pages[f"/files/{file}"] = content
            rows.append(
                {
                    "filename": file,
                    "url": f"/files/{file}",
                    "hashes": {"sha256": digest},
                    "size": len(content),
                    "yanked": False,
                }
            )
            links.append(f'<a href="../../files/{file}#sha256={digest}">{file}</a>')
        body = "<html>" + "<br>".join(links) if html else json.dumps({"files": rows})
        pages[f"/simple/{name}/"] = body.encode()
    return pages
