"""schemathesis against the served OpenAPI document: `make schemathesis`.

`ARGS="50 ^/v2/embed"` draws 50 requests per operation, of the paths that the pattern matches.

No answer with a status that the document does not name for its route, none that is a server error,
none that does not have the shape the document gives it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from helpers.real_server import RealServer  # noqa: E402

VENV = ROOT / ".work" / "clients" / "schemathesis"
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,unsupported_method"
)


def main() -> int:
    program = VENV / "bin" / "schemathesis"
    if not program.exists():
        print("installing schemathesis ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        subprocess.run(
            [str(VENV / "bin" / "python"), "-m", "pip", "install", "-q", "schemathesis"], check=True
        )
    examples = sys.argv[1] if len(sys.argv) > 1 else "100"
    # Models are drawn to be pulled, created and deleted: not those of who runs this.
    home = tempfile.TemporaryDirectory(prefix="tidemill-fuzz-")
    os.environ["TIDEMILL_HOME"] = home.name
    paths = ["--include-path-regex", sys.argv[2]] if len(sys.argv) > 2 else []
    with RealServer() as server:
        command = [
            str(program), "run", f"{server.url}/openapi.json", "--url", server.url,
            "--checks", CHECKS, "--max-examples", examples, "--request-timeout", "60",
            "--seed", "1", "--phases", "examples,coverage,fuzzing", *paths,
        ]  # fmt: skip
        code = subprocess.run(command, check=False).returncode
        assert server.process.poll() is None, "the server has ended"
    return code


if __name__ == "__main__":
    sys.exit(main())
