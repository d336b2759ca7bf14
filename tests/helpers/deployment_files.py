"""A deployment file that uses every table, and the files that it names."""

from __future__ import annotations

from pathlib import Path

GOOD = """\
[server]
host = "localhost"
port = 9000
memory = "24GiB"
keep-alive = "5m"

[limits]
max_body_bytes = 1_000_000

[admission]
ttft_objective_ms = 1500

[security]
api_keys = "keys.toml"
cors_origin = ["https://app.example"]

[defaults]
kv_dtype = "int8"
threads = 2

[defaults.sampling]
temperature = 0.5

[[models]]
name = "chat"
source = "./model.gguf"
aliases = ["gpt-4o-mini"]
pin = true
threads = 4
kv_memory = "2GiB"
system = "You are brief."
chat_template = "template.jinja"

[models.sampling]
top_p = 0.9

[[models]]
source = "owner/name:Q4_K_M"
keep_alive = 30

[[pipelines]]
file = "answers.py"
options = { folder = "texts", count = 3 }
"""

VERSIONS = """
[[models]]
name = "v"
traffic = "1"
[[models.versions]]
version = "1"
source = "o/one"
[[models.versions]]
version = "2"
source = "o/two"
"""


def write_files(folder: Path) -> None:
    """Write the files that `GOOD` names."""
    (folder / "model.gguf").write_bytes(b"GGUF")
    (folder / "template.jinja").write_text("{{ messages }}")
    (folder / "keys.toml").write_text('[[keys]]\nname = "a"\nkey = "0123456789abcdef0123"\n')
    (folder / "keys.toml").chmod(0o600)
    (folder / "answers.py").write_text("async def answer(request, models):\n    return 1\n")
