"""What benchmarks share: the model, servers in processes of their own, memory, tables in docs."""

from __future__ import annotations

import asyncio
import compileall
import contextlib
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemill.backends import native
from tidemill.base.clock import monotonic
from tidemill.bench.client import Target, get_json
from tidemill.cli.machine import cpu_facts, describe_cpu

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".work"
MODELS = WORK / "models"
MODEL = MODELS / "qwen3-0.6b"
DOC = ROOT / "docs" / "benchmarks.md"
SIDE_BY_SIDE = ROOT / "docs" / "side_by_side"
# Before a shape's name: brook inflated to it (inflate.py).
INFLATED = "brook-as-"
TIDEMILL = ROOT / ".venv" / "bin" / "tidemill"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def compiled() -> None:
    """Keep the package's bytecode, as pip does where a package is installed: a start that is
    measured reads it also where PYTHONDONTWRITEBYTECODE is set."""
    compileall.compile_dir(ROOT / "src" / "tidemill", quiet=1)


def threads() -> int:
    """What every side of a benchmark may use."""
    return len(os.sched_getaffinity(0))


def make_model(shape: str = MODEL.name) -> Path:
    """The folder of a shape's checkpoint, written when it is not there: random weights, or brook
    inflated for a name that begins with `INFLATED`."""
    folder = MODELS / shape
    if not (folder / "config.json").exists():
        command = ["make_model.py", shape, str(folder)]
        if shape.startswith(INFLATED):
            named = shape.removeprefix(INFLATED)
            command = ["inflate.py", named, str(folder), "--companions"]
        script = ROOT / "benchmarks" / command[0]
        subprocess.run([sys.executable, str(script), *command[1:]], check=True, cwd=ROOT)
    return folder


@dataclass(frozen=True)
class Server:
    """A server process that answers.

    Attributes:
        url: its API's base, ending in /v1.
        pid: its first process.
        ready: seconds from the start of the process until it said that it was ready.
    """

    url: str
    pid: int
    ready: float

    def pause(self) -> None:
        """Stop its processes, so that what it does when idle disturbs nobody."""
        for pid in process_tree(self.pid):
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        for pid in process_tree(self.pid):
            os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def serving(
    command: Sequence[str], ready: str = "/readyz", *, environment: Mapping[str, str] | None = None,
    log: Path | None = None, limit: float = 600.0,
) -> Iterator[Server]:  # fmt: skip
    """Run a server; ``{port}`` in its command is replaced by a free port.

    Args:
        ready: route that answers 200 with JSON, or with nothing, once it serves.
        log: where its output goes; None: to the terminal.
        limit: seconds until that is given up with SystemExit.
    """
    port = free_port()
    command = [part.replace("{port}", str(port)) for part in command]
    start = monotonic()
    with contextlib.ExitStack() as stack:
        out = None
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            out = stack.enter_context(log.open("ab"))
        process = subprocess.Popen(
            command, env={**os.environ, **(environment or {})}, stdout=out, stderr=out
        )
        url = f"http://127.0.0.1:{port}"
        server = None
        try:
            while not _answers(url, ready):
                if process.poll() is not None:
                    raise SystemExit(f"{command[0]} exited with {process.returncode}")
                if monotonic() - start > limit:
                    raise SystemExit(f"{command[0]} was not ready after {limit:.0f} s")
                time.sleep(0.02)
            server = Server(f"{url}/v1", process.pid, monotonic() - start)
            yield server
        finally:
            if server is not None and process.poll() is None:
                server.resume()
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _answers(url: str, route: str) -> bool:
    try:
        asyncio.run(get_json(Target.parse(url, None), route))
    except ValueError:
        return True  # 200 without a document
    except Exception:
        return False
    return True


@contextlib.contextmanager
def tidemill(model: Path, *flags: str, log: Path | None = None) -> Iterator[Server]:
    """`tidemill serve` of a model."""
    command = [str(TIDEMILL), "serve", str(model), "--port", "{port}", *flags]
    with serving(command, log=log) as server:
        yield server


def process_tree(pid: int) -> list[int]:
    """A process and all that it started, in that order."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def proportional_bytes(pid: int) -> int:
    """Proportional set size of a process and all that it started, in bytes."""
    total = 0
    for p in process_tree(pid):
        for line in Path(f"/proc/{p}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def machine_kind() -> str:
    """A name for machines whose figures may stand in one table: the best instruction set, and the
    processor's family where the system tells it."""
    family = cpu_facts().get("cpu family")
    return "-family".join(filter(None, (native.available_isas()[0], family)))


def machine_line(what: str) -> str:
    """What a table was measured on, and when."""
    date = time.strftime("%Y-%m-%d")
    return f"{describe_cpu()}; Python {platform.python_version()}; {what}, {date}."


def machine_page() -> Path:
    """This kind of machine's page in docs/side_by_side; made with empty sections if missing."""
    kind = machine_kind()
    page = SIDE_BY_SIDE / f"{kind}.md"
    if not page.exists():
        sections = [f"# {describe_cpu()}", "## Tidemill and its peers"]
        sections += [f"<!-- side_by_side {kind}: begin -->\n<!-- side_by_side {kind}: end -->"]
        sections += ["## Kernels, one thread"]
        sections += [f"<!-- kernels {kind}: begin -->\n<!-- kernels {kind}: end -->"]
        page.write_text("\n\n".join(sections) + "\n")
    return page


def write_section(name: str, text: str, page: Path = DOC) -> None:
    """Put `text` between the markers ``<!-- NAME: begin -->`` and ``end`` of a page; if the page
    has none, print it."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if page.exists() and begin in (content := page.read_text()):
        head, _, rest = content.partition(begin)
        page.write_text(f"{head}{begin}\n{text}\n{end}{rest.partition(end)[2]}")
    else:
        print(f"{page} has no section {begin}; it would hold:\n{text}")
