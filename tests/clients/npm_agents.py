"""Agents as people run them, from npm and PyPI, offline: each edits a file and runs a command by
the real HTTP stack. The model behind it is a script, so that its loop goes to its end.

``make agents``; with names as arguments only those.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(HERE)]

from helpers.live_server import fake_context, serving  # noqa: E402
from helpers.marked_model import TEMPLATE  # noqa: E402
from helpers.scripted_engine import EOS, ScriptedEngine, fake_info  # noqa: E402
from run import version  # noqa: E402

from tidemill.contract.request import EngineRequest  # noqa: E402
from tidemill.text.template import ChatTemplate  # noqa: E402

MODEL = "brook"
LEAST_SHARED = 0.95
"""Of a turn's prompt."""


@dataclass(frozen=True)
class Agent:
    """One agent.

    Attributes:
        package: on npm, or on PyPI where it is Python's.
        turns: what the model writes, turn by turn; ``{work}`` is the folder that it works in.
        prepare: writes its configuration; gets its home and the server's URL.
        command: what runs it, behind its own program's path; ``{home}`` is its home.
        made: files that it must have made, with their contents.
        python: it is a package of PyPI.
        install: a script of the package that npm may not have run, since it asks before it does.
    """

    package: str
    turns: tuple[str, ...]
    prepare: Callable[[Path, str], None]
    command: tuple[str, ...]
    made: dict[str, str]
    install: str = ""
    python: bool = False


def call(name: str, **arguments: object) -> str:
    """A call as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _codex(home: Path, url: str) -> None:
    catalog = {
        "slug": MODEL,
        "display_name": MODEL,
        "description": None,
        "supported_reasoning_levels": [],
        "shell_type": "unified_exec",
        "visibility": "list",
        "supported_in_api": True,
        "priority": 0,
        "upgrade": None,
        "base_instructions": "You are a coding agent.",
        "supports_reasoning_summaries": False,
        "support_verbosity": False,
        "default_verbosity": None,
        "apply_patch_tool_type": "freeform",  # a custom tool with a Lark grammar
        "truncation_policy": {"mode": "tokens", "limit": 10000},
        "supports_parallel_tool_calls": True,
        "context_window": 131072,
        "experimental_supported_tools": [],
    }
    (home / "catalog.json").write_text(json.dumps({"models": [catalog]}))
    (home / "config.toml").write_text(
        f'model = "{MODEL}"\nmodel_provider = "tidemill"\n'
        f'model_catalog_json = "{home / "catalog.json"}"\n'
        f'[model_providers.tidemill]\nname = "tidemill"\nbase_url = "{url}/v1"\n'
        'wire_api = "responses"\n'
    )


def _codex_socket(home: Path, url: str) -> None:
    """As `_codex`, by OpenAI's WebSocket mode."""
    _codex(home, url)
    with (home / "config.toml").open("a") as file:
        file.write("supports_websockets = true\n")


def _claude(home: Path, url: str) -> None:
    """It asks for models of its own names: the server has a pattern for them."""
    environment = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    (home / ".claude").mkdir()
    (home / ".claude" / "settings.json").write_text(json.dumps({"env": environment}))


def _opencode(home: Path, url: str) -> None:
    model = {"name": MODEL, "tool_call": True, "limit": {"context": 400_000, "output": 8_000}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {MODEL: model},
    }
    config = {
        "provider": {"tidemill": provider},
        "model": f"tidemill/{MODEL}",
        "small_model": f"tidemill/{MODEL}",
        "autoupdate": False,
        "share": "disabled",
        "permission": {"edit": "allow", "bash": "allow", "webfetch": "deny"},
        "agent": {"title": {"disable": True}},
    }
    folder = home / ".config" / "opencode"
    folder.mkdir(parents=True)
    (folder / "opencode.json").write_text(json.dumps(config))


def _continue(home: Path, url: str) -> None:
    (home / "config.yaml").write_text(
        "name: tidemill\nversion: 1.0.0\nschema: v1\nmodels:\n"
        f"  - name: {MODEL}\n    provider: openai\n    model: {MODEL}\n"
        f"    apiBase: {url}/v1\n    apiKey: none\n    roles: [chat]\n"
        "    capabilities: [tool_use]\n"
        "    defaultCompletionOptions:\n      contextLength: 400000\n      maxTokens: 8000\n"
    )


def _aider(home: Path, url: str) -> None:
    """It edits files by its own form of answers and calls no tools."""
    settings = {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "none"}
    lines = [f"{name}={value}\n" for name, value in settings.items()]
    (home / "aider.env").write_text("".join(lines))


PATCH = '*** Begin Patch\n*** Add File: hello.py\n+print("hi")\n*** End Patch\n'
AGENTS = {
    "codex": Agent(
        "@openai/codex",
        (
            call("apply_patch", input=PATCH),
            call("exec_command", cmd="python3 hello.py > said.txt"),
            "All done.",
        ),
        _codex,
        (
            "codex",
            "exec",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            "write hello.py and run it",
        ),
        {"hello.py": 'print("hi")\n', "said.txt": "hi\n"},
    ),
    "claude": Agent(
        "@anthropic-ai/claude-code",
        (
            "I write it first.\n" + call("Write", file_path="hello.py", content='print("ho")\n'),
            call("Edit", file_path="hello.py", old_string="ho", new_string="hi"),
            call("Bash", command="python3 hello.py > said.txt", description="Run it"),
            "All done.",
        ),
        _claude,
        ("claude", "-p", "write hello.py and run it", "--allowedTools", "Bash,Edit,Write,Read"),
        {"hello.py": 'print("hi")\n', "said.txt": "hi\n"},
        install="install.cjs",
    ),
    "opencode": Agent(
        "opencode-ai",
        (
            call("write", filePath="{work}/hello.py", content='print("ho")\n'),
            call("edit", filePath="{work}/hello.py", oldString="ho", newString="hi"),
            call("bash", command="python3 hello.py > said.txt", description="Run it"),
            "All done.",
        ),
        _opencode,
        ("opencode", "run", "write hello.py and run it"),
        {"hello.py": 'print("hi")\n', "said.txt": "hi\n"},
    ),
    "aider": Agent(
        "aider-chat",
        ("hello.py\n```\nprint('ho')\n```\n", "All done."),
        _aider,
        (
            *("aider", "--model", f"openai/{MODEL}", "--edit-format", "whole", "--no-git"),
            *(
                "--yes-always",
                "--no-check-update",
                "--analytics-disable",
                "--no-show-release-notes",
            ),
            *("--no-show-model-warnings", "--env-file", "{home}/aider.env"),
            *("--message", "write hello.py", "hello.py"),
        ),
        {"hello.py": "print('ho')\n"},
        python=True,
    ),
    "continue": Agent(
        "@continuedev/cli",
        (
            call("Write", filepath="hello.py", content='print("hi")\n'),
            call("Bash", command="python3 hello.py > said.txt"),
            "All done.",
        ),
        _continue,
        ("cn", "-p", "--auto", "--config", "{home}/config.yaml", "write hello.py and run it"),
        {"hello.py": 'print("hi")\n', "said.txt": "hi\n"},
    ),
}
AGENTS["codex_socket"] = replace(AGENTS["codex"], prepare=_codex_socket)


def shared(one: Sequence[int], other: Sequence[int]) -> float:
    """The part of `other` that is the beginning of `one`: what the prefix cache finds."""
    same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    return same / len(other)


def _installed(name: str, agent: Agent) -> tuple[Path, str]:
    """Its folder of programs and its version; installed at first use."""
    folder = ROOT / ".work" / "agents" / name
    if agent.python:
        python = folder / "bin" / "python"
        if not python.exists():
            print(f"{name}: installing ...", flush=True)
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        if subprocess.run([python, "-m", "pip", "show", "-q", agent.package]).returncode:
            subprocess.run([python, "-m", "pip", "install", "-q", agent.package], check=True)
        return folder / "bin", version(python, agent.package)
    package = folder / "node_modules" / agent.package / "package.json"
    if not package.exists():
        print(f"{name}: installing ...", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", agent.package]
        subprocess.run(npm, check=True, cwd=folder)
        if agent.install:
            subprocess.run(["node", agent.install], check=True, cwd=package.parent)
    return folder / "node_modules" / ".bin", json.loads(package.read_text())["version"]


def _placed(text: str, places: Mapping[str, str]) -> str:
    """A text with the places of this run: ``{home}`` and ``{work}``."""
    for name, place in places.items():
        text = text.replace("{" + name + "}", place)
    return text


def run(name: str, agent: Agent) -> bool:
    """Let it work; True when it made what it should."""
    programs, version = _installed(name, agent)
    turns = iter((*agent.turns, *(["All done."] * 9)))
    places: dict[str, str] = {}

    def script(request: EngineRequest, choice: int) -> list[int]:
        if request.sampling.max_tokens == 1:  # only the prompt is computed, for the cache
            return [EOS]
        return [*_placed(next(turns), places).encode(), EOS]

    engine = ScriptedEngine(script, info=fake_info(max_model_len=400_000))
    context = fake_context(engine, template=ChatTemplate(TEMPLATE), aliases=(MODEL, "claude-*"))
    with serving(context) as url, tempfile.TemporaryDirectory() as scratch:
        home, work = Path(scratch, "home"), Path(scratch, "work")
        home.mkdir()
        work.mkdir()
        places.update(home=str(home), work=str(work))
        agent.prepare(home, url)
        environment = {**os.environ, "HOME": str(home), "CODEX_HOME": str(home), "PWD": str(work)}
        done = subprocess.run(
            [str(programs / agent.command[0]), *(_placed(a, places) for a in agent.command[1:])],
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        made = {
            file: (work / file).read_text() if (work / file).exists() else None
            for file in agent.made
        }
    answered = [r for r in engine.requests if r.sampling.max_tokens != 1]
    prompts = [request.prompt_token_ids for request in answered]
    known = min(map(shared, prompts, prompts[1:]), default=1.0)
    passed = made == agent.made and known >= LEAST_SHARED
    print(
        f"{agent.package} {version}: {'ok' if passed else 'failed'}, {len(prompts)} turns; of each "
        f"prompt {known:.1%} at least were the beginning of the one before"
    )
    if not passed:
        print(made, done.stdout[-3000:], done.stderr[-3000:], sep="\n")
    return passed


def main() -> int:
    names = sys.argv[1:] or list(AGENTS)
    return 0 if all([run(name, AGENTS[name]) for name in names]) else 1


if __name__ == "__main__":
    sys.exit(main())
