"""Clients as people install them, each in an environment of its own, against our server.

``make clients``; with names as arguments only those. Writes docs/clients.md's table.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from helpers.real_server import RealServer  # noqa: E402

# client: (packages, the one whose version is told)
CLIENTS = {
    "openai": (["openai", "pydantic"], "openai"),
    "litellm": (["litellm", "mcp"], "litellm"),
    "langchain": (["langchain-openai"], "langchain-openai"),
    "instructor": (["instructor"], "instructor"),
    "agents": (["openai-agents"], "openai-agents"),
}
BEGIN, END = "<!-- clients: begin -->", "<!-- clients: end -->"


def environment(name: str) -> Path:
    """The client's own Python, made at first use."""
    folder = ROOT / ".work" / "clients" / name
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"{name}: installing ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    packages, told = CLIENTS[name]
    if subprocess.run([python, "-m", "pip", "show", "-q", told], capture_output=True).returncode:
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
    return python


def version(python: Path, package: str) -> str:
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return next(p["version"] for p in json.loads(listed) if p["name"].lower() == package)


def main() -> int:
    names = sys.argv[1:] or list(CLIENTS)
    rows, failed = [], 0
    pythons = {name: environment(name) for name in names}
    with RealServer() as server:
        for name, python in pythons.items():
            script = Path(__file__).with_name(f"with_{name}.py")
            done = subprocess.run(
                [python, str(script), f"{server.url}/v1"],
                capture_output=True,
                text=True,
                timeout=300,
            )
            failed += done.returncode != 0
            package = CLIENTS[name][1]
            said = done.stdout.strip().splitlines()[-1:] if not done.returncode else ["failed"]
            rows.append(f"| {package} {version(python, package)} | {''.join(said)} |")
            print(rows[-1], flush=True)
            if done.returncode:
                print(done.stderr[-3000:])
    page = ROOT / "docs" / "clients.md"
    if not failed and len(names) == len(CLIENTS):
        head, rest = page.read_text().split(BEGIN)
        table = "\n".join(["| client | final answer |", "|---|---|", *rows])
        page.write_text(f"{head}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
