"""What is installed: one stable-ABI core, a small base, a bundled model within its bound."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

from packaging.requirements import Requirement

from tidemill.backends.native import _core
from tidemill.loading import bundled_models


def test_core_is_built_for_the_stable_abi() -> None:
    assert _core.__file__.endswith(".abi3.so")


def test_base_install_asks_for_no_accelerator_stack() -> None:
    requirements = [Requirement(r) for r in metadata.requires("tidemill") or ()]
    base = {r.name for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})}
    assert not base & {"torch", "transformers", "triton", "ray", "grpcio", "safetensors"}
    extra = [r for r in requirements if r.name == "torch"]
    assert [str(r.specifier) for r in extra] == [">=2.11"]


def test_bundled_model_is_within_14_mb() -> None:
    folder = bundled_models()["brook"]
    assert sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) <= 14_000_000


def test_serving_imports_no_torch() -> None:
    code = (
        "import sys, tidemill.server.run, tidemill.server.app, tidemill.llm, tidemill.worker.load;"
        "import tidemill.backends.native;"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_api_process_opens_text_alone() -> None:
    """Numpy and what describes weights would cost every start a quarter of a second, and memory;
    pydantic 75 ms and 10 MiB."""
    code = (
        "import sys, tidemill.server.run, tidemill.server.transport.http;"
        "import tidemill.offline.opened_text;"
        "import tidemill.cli.main;"
        "command = tidemill.cli.main.app_of(['serve']).commands['serve'];"
        "command.make_context('serve', ['--port', '1', '--limit', 'a=1', 'model']);"
        "from tidemill.base.build import build_id;"
        "from tidemill.text.answering import ChatSide;"
        "from tidemill.grammar.schema import prepared;"
        "opened = tidemill.offline.opened_text.OpenedText.open();"
        "ChatSide.of(opened.tokenizer, opened.template, prepared);"
        "build_id();"
        "unwanted = {'numpy', 'tidemill.models.spec', 'tidemill.backends', 'pydantic', 'rich'};"
        "unwanted |= {'sqlalchemy', 'aiosqlite', 'alembic'};"
        "found = unwanted & set(sys.modules);"
        "sys.exit(', '.join(found) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
