"""Names to paths: mistyped paths, and what a hub on loopback has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.fake_hub import COMMIT, FakeHub
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.loading.locate import locate, resolve

# The library reads its settings when it is imported: each case is asked in a process that has them.
_RESOLVE = """
import json, sys
from tidemill.base.errors import TidemillError
from tidemill.loading.locate import locate
for name in json.loads(sys.argv[1]):
    said = []
    try:
        path, served = locate(name, said.append)
        print(json.dumps(["", str(path), served, said]))
    except TidemillError as error:
        print(json.dumps([error.kind, error.message, error.retryable, said]))
"""
REPOS = {
    "owner/folder": {
        "config.json": b"{}",
        "model.safetensors": b"weights",
        "pytorch_model.bin": b"pickle",
        "1_Pooling/config.json": b"{}",
        "original/model.safetensors": b"again",
    },
    "owner/gguf": {
        "m-Q8_0.gguf": b"eight",
        "m-Q4_K_M.gguf": b"four",
        "big [1]/m-BF16-00001-of-00002.gguf": b"one",
        "big [1]/m-BF16-00002-of-00002.gguf": b"two",
    },
    "owner/gated": {},
}


def _ask(home: Path, names: list[str], endpoint: str, **env: str) -> list[list[object]]:
    settings = {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _RESOLVE, json.dumps(names)],
        env={**os.environ, **settings, "HF_HUB_DISABLE_XET": "1", **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_what_is_fetched_and_what_is_refused(tmp_path: Path) -> None:
    hub = FakeHub(REPOS, gated=("owner/gated",))
    snapshot = tmp_path / "hub/models--owner--gguf/snapshots" / COMMIT
    with hub.listening():
        folder, usual, eight, parts, *refused = _ask(
            tmp_path,
            ["owner/folder", "owner/gguf", "hf.co/owner/gguf:q8_0", "owner/gguf:bf16",
             "owner/gguf:Q2_K", "owner/gated", "owner/absent", "owner/gguf@v9", "owner/a--b"],
            hub.url,
        )  # fmt: skip
        hub.down = True
        (down,) = _ask(tmp_path, ["owner/elsewhere"], hub.url)
    got = Path(str(folder[1]))
    files = {str(f.relative_to(got)) for f in got.rglob("*") if f.is_file()}
    assert files == {"config.json", "model.safetensors", "1_Pooling/config.json"}
    assert folder[2] == "owner/folder"
    assert usual[1] == str(snapshot / "m-Q4_K_M.gguf") and "owner/gguf:TYPE" in str(usual[3])
    assert eight[1:] == [str(snapshot / "m-Q8_0.gguf"), "owner/gguf:q8_0", []]
    assert Path(str(parts[1])).read_bytes() == b"one"
    assert Path(str(parts[1]).replace("-00001-", "-00002-")).read_bytes() == b"two"
    for answer, said in zip(
        refused,
        ("Q4_K_M, Q8_0, BF16", "HF_TOKEN", "no such folder here", "no revision 'v9'", "no name"),
        strict=True,
    ):
        assert answer[0] == "not_found" and said in str(answer[1])
    assert down[0] == "unavailable" and "answered 503" in str(down[1]) and down[2] is True
    assert not [path for path in hub.asked if ".bin" in path or "original" in path]

    # With no hub the copy stands in, with a word; what was never here is refused at the first try.
    nowhere = "http://127.0.0.1:9"
    again, kept, missing = _ask(tmp_path, ["owner/folder", "owner/gguf:Q8_0", "o/new"], nowhere)
    assert again[1] == folder[1] and "cache" in str(again[3])
    assert kept[1] == eight[1]
    assert missing[0] == "unavailable" and "cannot be reached" in str(missing[1])
    offline, missing = _ask(tmp_path, ["owner/gguf:q8_0", "o/new"], nowhere, HF_HUB_OFFLINE="1")
    assert offline[1] == eight[1] and "HF_HUB_OFFLINE is set, unset it" in str(missing[1])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("./models/m.guf", "no such file or folder; did you mean models/m.gguf?"),
        ("models/m.guf.gguf", "no such file or folder; did you mean models/m.gguf?"),
        ("modles/m.gguf", "this folder has no 'modles'; did you mean models?"),
        ("/absent/m.gguf", "/ has no 'absent'"),
        ("brok", "owner/name; did you mean brook?"),
        ("a/b/c", "this folder has no 'a'"),
        ("a\\b", "no such file or folder"),
    ],
)
def test_a_mistyped_path_is_said_to_be_one(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models/m.gguf").touch()
    with pytest.raises(TidemillError) as caught:
        resolve(text)
    assert caught.value.kind == ErrorKind.NOT_FOUND and said in caught.value.message


def test_a_folder_of_gguf_files_is_the_model_in_it(tmp_path: Path) -> None:
    parts = [tmp_path / f"m-Q8_0-0000{i}-of-00002.gguf" for i in (1, 2)]
    for file in (*parts, tmp_path / "mmproj-m.gguf"):
        file.touch()
    assert locate(tmp_path) == (parts[0], parts[0].stem)
    (tmp_path / "other.gguf").touch()
    with pytest.raises(TidemillError, match=r"name one: m-Q8_0-00001.*, other\.gguf"):
        resolve(tmp_path)
    (tmp_path / "config.json").touch()
    assert resolve(tmp_path) == tmp_path
