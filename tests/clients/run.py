"""Clients as people install them, each in an environment of its own, against our server.

``make clients``; with names as arguments only those. Writes docs/clients.md's table. Between client
and server stands a proxy that keeps which fields the client sends.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(HERE)]

from helpers.real_server import RealServer  # noqa: E402
from recorder import Recorder  # noqa: E402

# client: (packages, the one whose version is told); those of Node.js have scripts in JavaScript
CLIENTS = {
    "openai": (["openai", "pydantic"], "openai"),
    "litellm": (["litellm", "mcp"], "litellm"),
    "langchain": (["langchain-openai"], "langchain-openai"),
    "instructor": (["instructor"], "instructor"),
    "agents": (["openai-agents"], "openai-agents"),
    "pydantic_ai": (["pydantic-ai-slim[openai]"], "pydantic-ai-slim"),
    "smolagents": (["smolagents[openai]"], "smolagents"),
    "llama_index": (["llama-index-llms-openai-like"], "llama-index-llms-openai-like"),
    "semantic_kernel": (["semantic-kernel"], "semantic-kernel"),
    "huggingface_hub": (["huggingface_hub"], "huggingface_hub"),
    "llm": (["llm"], "llm"),
    "ollama": (["ollama"], "ollama"),
    "ollama_js": (["ollama"], "ollama"),
    "cohere": (["cohere"], "cohere"),
    "tritonclient": (["tritonclient[http]"], "tritonclient"),
    "tritonclient_grpc": (["tritonclient[grpc]"], "tritonclient"),
    "kserve": (["kserve"], "kserve"),
    "openai_js": (["openai"], "openai"),
    "anthropic": (["anthropic"], "anthropic"),
    "anthropic_js": (["@anthropic-ai/sdk"], "@anthropic-ai/sdk"),
    "llm_comply": (["llm-comply", "jsonschema"], "llm-comply"),
    "ai_sdk": (["ai", "@ai-sdk/openai-compatible", "zod"], "ai"),
}
BEGIN, END = "<!-- clients: begin -->", "<!-- clients: end -->"


def environment(name: str) -> tuple[list[str], str]:
    """What runs the client's script, made at first use, and the version of the client."""
    folder = ROOT / ".work" / "clients" / name
    script = next(HERE.glob(f"with_{name}.*"))
    packages, told = CLIENTS[name]
    if script.suffix == ".mjs":
        folder.mkdir(parents=True, exist_ok=True)
        installed = folder / "node_modules" / told / "package.json"
        if not installed.exists():
            print(f"{name}: installing ...", flush=True)
            npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", *packages]
            subprocess.run(npm, check=True, cwd=folder)
        shutil.copy(script, folder)  # modules are looked for beside it
        return ["node", str(folder / script.name)], json.loads(installed.read_text())["version"]
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"{name}: installing ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    if subprocess.run([python, "-m", "pip", "show", "-q", told], capture_output=True).returncode:
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
    return [str(python), str(script)], version(python, told)


def version(python: Path, package: str) -> str:
    """Of an installed package."""
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return next(p["version"] for p in json.loads(listed) if p["name"].lower() == package)


def sent(recorder: Recorder) -> str:
    """The fields of a client's requests, those of its messages last."""
    fields = sorted(recorder.fields, key=lambda name: (name.startswith("messages[]"), name))
    return ", ".join(f"`{name}`" for name in fields)


def main() -> int:
    names = sys.argv[1:] or list(CLIENTS)
    rows, failed = [], 0
    commands = {name: environment(name) for name in names}
    home = tempfile.TemporaryDirectory(prefix="tidemill-clients-")  # clients create models
    os.environ["TIDEMILL_HOME"] = home.name
    with RealServer("--grpc-port", "0") as server:
        found = re.search(r"over gRPC on port (\d+)", server.text)
        assert found is not None
        surroundings = {**os.environ, "TIDEMILL_GRPC_PORT": found[1]}
        for name, (command, told) in commands.items():
            with Recorder(server.url) as recorder:
                done = subprocess.run(
                    [*command, f"{recorder.url}/v1"],
                    capture_output=True,
                    text=True,
                    timeout=300,
                    env=surroundings,
                )
            failed += done.returncode != 0
            said = done.stdout.strip().splitlines()[-1:] if not done.returncode else ["failed"]
            client = f"{CLIENTS[name][1]} {told}" + (" (JavaScript)" * (command[0] == "node"))
            client += " (gRPC)" * name.endswith("_grpc")
            rows.append(f"| {client} | {''.join(said)} | {sent(recorder)} |")
            print(rows[-1], flush=True)
            if done.returncode:
                print(done.stderr[-3000:], *recorder.refused, sep="\n")
    page = ROOT / "docs" / "clients.md"
    if not failed and len(names) == len(CLIENTS):
        head, rest = page.read_text().split(BEGIN)
        table = "\n".join(["| client | final answer | fields it sent |", "|---|---|---|", *rows])
        page.write_text(f"{head}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
