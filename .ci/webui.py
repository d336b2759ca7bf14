"""Builds the page again and compares it with the files of src/tidemill/webui (make webui-check).

Compressed files are compared by what they contain: compressors differ between versions of Node.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILT = ROOT / "src" / "tidemill" / "webui"


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder, expanded; each that is there in two codings once."""
    return {
        file.name.removesuffix(".gz"): gzip.decompress(file.read_bytes())
        if file.suffix == ".gz"
        else file.read_bytes()
        for file in folder.iterdir()
        if file.suffix != ".br"
    }


def main() -> int:
    """1 if the files differ, with their names."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "built"
        subprocess.run(
            ["npm", "run", "build", "--silent"],
            cwd=ROOT / "webui",
            env={**os.environ, "WEBUI_OUT": str(target)},
            check=True,
        )
        new, old = contents(target), contents(BUILT)
    wrong = sorted(name for name in new.keys() | old.keys() if new.get(name) != old.get(name))
    for name in wrong:
        print(f"src/tidemill/webui/{name} is not what webui/ gives; run `make webui`")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
