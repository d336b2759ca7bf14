"""What is in force is shown as a deployment file, with origins and without secrets."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

from helpers.deployment_files import GOOD, VERSIONS

from tidemill.deployment.deployment import Deployment
from tidemill.deployment.difference import difference
from tidemill.deployment.problems import Origin
from tidemill.deployment.reading import Sourced
from tidemill.deployment.show import as_toml, rows

Deploy = Callable[..., Deployment]

OWN = {"sampling.top_k": (40, "its files"), "sampling.top_p": (0.1, "its files")}


def test_what_is_shown_is_the_same_deployment(deploy: Deploy) -> None:
    given = {"threads": Sourced(7, Origin("flag", "--threads"))}
    found = deploy(GOOD + VERSIONS, given=given)
    for changed in (False, True):
        text = as_toml(rows(found), found, changed=changed)
        again = deploy(text)
        assert not difference(found, again), text
        assert again.served_names == found.served_names


def test_every_value_has_its_origin(deploy: Deploy) -> None:
    found = deploy(GOOD, given={"port": Sourced(7, Origin("flag", "--port"))})
    lines = as_toml(rows(found, lambda model: OWN), found).splitlines()
    origins = {line.split("  # ")[0].rstrip(): line.rpartition("  # ")[2] for line in lines}
    assert origins["port = 7"] == "--port"
    assert origins['memory = "24GiB"'] == "t.toml:4:10"
    assert origins['kv_dtype = "int8"'] == "t.toml:18:12 ([defaults])"
    assert origins["keep_alive = 30"] == "t.toml:39:14"
    assert origins["# max_queue_tokens: from the KV cache and the measured rate"] == "default"
    assert origins["# top_k: 40"] == "its files"
    assert origins["top_p = 0.9"] == "t.toml:35:9", "the file counts before the model's own"


def test_secrets_are_hidden(deploy: Deploy, folder: Path) -> None:
    (folder / "answers.py").write_text("async def answer(request, models): ...")
    text = (
        "[security]\napi_key = ['velvet-hammer-1', 'velvet-hammer-2']\n"
        "[[models]]\nname = 'a'\nsource = 'https://user:velvet@host/a.gguf'\n"
        "[[pipelines]]\nfile = 'answers.py'\n"
        "options = {api_key = 'velvet', deep = [{password = 'velvet'}], chunk = 3, "
        "url = 'http://x:velvet@y'}\n"
    )
    found = deploy(text)
    shown = as_toml(rows(found), found)
    assert "velvet" not in shown and "2 (hidden)" in shown and "chunk = 3" in shown
    assert "# source: " in shown and "https://***@host/a.gguf" in shown
    tomllib.loads(shown)
    assert "velvet" not in repr([row for row in rows(found)])
