"""Agents as people run them, from npm, offline: each edits a file and runs a command through the
real HTTP stack. The model behind it is a script, so that the agent's loop goes to its end.

``make agents``; with names as arguments only those.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(HERE)]

from helpers.live_server import fake_context, serving  # noqa: E402
from helpers.marked_model import TEMPLATE  # noqa: E402
from helpers.scripted_engine import EOS, ScriptedEngine, fake_info  # noqa: E402

from tidemill.contract.request import EngineRequest  # noqa: E402
from tidemill.text.template import ChatTemplate  # noqa: E402

MODEL = "brook"
LEAST_SHARED = 0.95
"""Of a turn's prompt."""


@dataclass(frozen=True)
class Agent:
    """One agent.

    Attributes:
        package: on npm.
        turns: what the model writes, turn by turn.
        prepare: writes its configuration; gets its home and the server's URL.
        command: what runs it, behind its own program's path.
        made: files that it must have made, with their contents.
        install: a script of the package that npm may not have run, since it asks before it does.
    """

    package: str
    turns: tuple[str, ...]
    prepare: Callable[[Path, str], None]
    command: tuple[str, ...]
    made: dict[str, str]
    install: str = ""


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


def _claude(home: Path, url: str) -> None:
    """It asks for models of its own names: the server has a pattern for them."""
    environment = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    (home / ".claude").mkdir()
    (home / ".claude" / "settings.json").write_text(json.dumps({"env": environment}))


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
}


def shared(one: Sequence[int], other: Sequence[int]) -> float:
    """The part of `other` that is the beginning of `one`: what the prefix cache finds."""
    same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    return same / len(other)


def _installed(name: str, agent: Agent) -> tuple[Path, str]:
    """Its folder of programs and its version; installed at first use."""
    folder = ROOT / ".work" / "agents" / name
    package = folder / "node_modules" / agent.package / "package.json"
    if not package.exists():
        print(f"{name}: installing ...", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", agent.package]
        subprocess.run(npm, check=True, cwd=folder)
        if agent.install:
            subprocess.run(["node", agent.install], check=True, cwd=package.parent)
    return folder / "node_modules" / ".bin", json.loads(package.read_text())["version"]


def run(name: str, agent: Agent) -> bool:
    """Let it work; True when it made what it should."""
    programs, version = _installed(name, agent)
    turns = iter((*agent.turns, *(["All done."] * 9)))

    def script(request: EngineRequest, choice: int) -> list[int]:
        return [*next(turns).encode(), EOS]

    engine = ScriptedEngine(script, info=fake_info(max_model_len=400_000))
    context = fake_context(engine, template=ChatTemplate(TEMPLATE), aliases=(MODEL, "claude-*"))
    with serving(context) as url, tempfile.TemporaryDirectory() as scratch:
        home, work = Path(scratch, "home"), Path(scratch, "work")
        home.mkdir()
        work.mkdir()
        agent.prepare(home, url)
        environment = {**os.environ, "HOME": str(home), "CODEX_HOME": str(home)}
        done = subprocess.run(
            [str(programs / agent.command[0]), *agent.command[1:]],
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
    prompts = [request.prompt_token_ids for request in engine.requests]
    known = min(map(shared, prompts, prompts[1:]), default=0.0)
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
