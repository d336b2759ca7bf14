"""pull, list, show, create, cp and rm as a user calls them, and models of the library elsewhere."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.tiny_adapter import write_adapter

from tests.helpers.fake_hub import FakeHub
from tests.helpers.real_server import RealServer
from tests.helpers.tiny_folder import write_folder
from tidemill.base.errors import TidemillError
from tidemill.cli import main
from tidemill.contract.sampling import SamplingParams
from tidemill.library.catalog import Library
from tidemill.library.create import create
from tidemill.library.definition.recipe import Recipe
from tidemill.library.manifest import Definition
from tidemill.loading import bundled_models

Call = Callable[..., str]


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Library.open()


@pytest.fixture
def call(
    library: Library, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Call:
    """Runs a command in this process; what it prints."""
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    def run(*arguments: str) -> str:
        main.app_of(arguments).main(list(arguments), standalone_mode=False)
        captured = capsys.readouterr()
        return captured.out + captured.err

    return run


def test_the_life_of_a_model(call: Call, tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text(
        "FROM brook\nSYSTEM You are a pirate.\nPARAMETER temperature 0\nPARAMETER num_ctx 512\n"
    )
    said = call("create", "pirate", "-p", "top_k=3", "--system", "You are a parrot.")
    assert "pirate is in the library, made from brook" in said
    shown = call("show", "pirate")
    assert "all, for one request of 512 tokens" in shown
    for line in (
        "created from  brook",
        "You are a parrot.",
        "temperature 0.0, top_k 3",
        "512 tokens",
    ):
        assert line in shown
    assert "pirate@2 is pirate now, too" in call("cp", "pirate", "pirate@2")
    listed = call("list").splitlines()
    assert re.match(r"model +id +from +size +added$", listed[0])
    assert re.match(r"pirate +[0-9a-f]{12} +library +8\.\d MiB +2\d", listed[1])
    assert listed[2].startswith("pirate@2 ") and re.match(r"brook +bundled", listed[3])
    assert call("rm", "pirate", "pirate@2").count("removed pirate") == 2
    assert len(call("list").splitlines()) == 2


def test_a_path_is_pulled_and_removed(call: Call, tmp_path: Path) -> None:
    model = bundled_models()["brook"]
    said = call("pull", str(model), "--as", "mine")
    assert f"mine is in the library (referenced in {model})" in said and "tidemill run mine" in said
    assert "referenced or shared, and stay" in call("rm", "mine") and model.is_dir()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rm",), "name the models to remove"),
        (("rm", "brook"), "comes with Tidemill and cannot be removed"),
        (("rm", "absent"), "the library has no model 'absent'"),
        (("cp", "absent", "x"), "the library has no model 'absent'"),
        (("create", "x"), "name it with --from"),
        (("create", "x", "--from", "brook", "-p", "top_k"), "takes NAME=VALUE"),
        (("create", "x", "--from", "brook", "-p", "top_kk=1"), "did you mean top_k?"),
        (("create", "x", "--from", "brook", "--quantize", "q9"), "quantize is one of"),
        (("create", "x", "--from", "brook", "--chat-template", "absent"), "cannot be read"),
        (("pull", "llama3"), "written owner/name"),
        (("run", "absent-model", "hi"), "no such file or folder"),
    ],
)
def test_errors_with_a_remedy(call: Call, arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(TidemillError) as caught:
        call(*arguments)
    assert said in caught.value.message
    assert len(call("list").splitlines()) == 2, "nothing was added"


def test_a_template_that_is_none(call: Call, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{% for %}")
    with pytest.raises(TidemillError, match="template"):
        call("create", "x", "--from", "brook", "--chat-template", "t.jinja")


def test_an_unusable_model_is_listed_as_such(call: Call, library: Library, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF" + bytes(20))
    (library.home / "manifests").mkdir(parents=True)
    (library.home / "manifests/broken.json").write_text("{")
    assert re.search(r"^broken +library, unusable: .*broken\.json", call("list"), re.MULTILINE)
    (library.home / "partial").mkdir()
    (library.home / "partial/x.part").write_bytes(b"1")
    assert "files of unfinished pulls: 1" in call("list")
    assert "removed broken" in call("rm", "broken", "--unfinished")
    assert "unfinished" not in call("list")


def test_run_applies_the_definition(call: Call, library: Library) -> None:
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}brook:"
    defined = Definition(
        system="Sing.",
        messages=({"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}),
        sampling={"temperature": 0.0, "max_tokens": 3},
        chat_template=template,
        max_model_len=256,
    )
    create("own", Recipe("brook", defined), library)
    by_name = call("run", "own", "Who are you?")
    rendered = "system:Sing.|user:A|assistant:B|user:Who are you?|brook:"
    from tidemill import LLM

    with LLM("brook", max_model_len=256) as llm:
        prompt = tuple(llm.tokenizer.encode(rendered, add_special=False))
        [answer] = llm.generate([prompt], SamplingParams(temperature=0.0, max_tokens=3))
    tokens = answer.outputs[0].token_ids
    assert by_name.strip() == answer.text.strip() and answer.text
    with LLM("own") as llm:
        assert llm.info.model == "own" and llm.info.max_model_len == 256
        [chatted] = llm.chat([{"role": "user", "content": "Who are you?"}])
        [longer] = llm.chat(
            [{"role": "user", "content": "Who are you?"}], llm.sampling(max_tokens=5)
        )
    assert chatted.outputs[0].token_ids == tokens and len(longer.outputs[0].token_ids) == 5


def test_a_server_applies_the_definition(library: Library) -> None:
    defined = Definition(system="Sing.", sampling={"temperature": 0.0, "max_tokens": 3})
    create("own", Recipe("brook", defined), library)
    question = {"role": "user", "content": "Who are you?"}
    system = {"role": "system", "content": "Sing."}
    with RealServer("own") as server:
        one, same, longer = (
            server.http.post("/v1/chat/completions", json=body).json()
            for body in (
                {"messages": [question]},
                {"messages": [system, question], "temperature": 0, "max_tokens": 3},
                {"messages": [question], "max_tokens": 5},
            )
        )
    assert one["model"] == "own"
    assert one["choices"][0]["message"] == same["choices"][0]["message"]
    used = [answer["usage"] for answer in (one, same, longer)]
    assert [usage["completion_tokens"] for usage in used] == [3, 3, 5]
    assert len({usage["prompt_tokens"] for usage in used}) == 1


def test_a_bar_in_a_terminal_and_ctrl_c(library: Library) -> None:
    hub = FakeHub({}, pages={"/big.gguf": b"GGUF" + bytes(2**20)})
    hub.pause = 0.02
    pull = [sys.executable, "-m", "tidemill", "pull", f"{hub.url}/big.gguf"]
    with hub.listening():
        process, terminal = pty.fork()
        if process == 0:
            os.execv(
                sys.executable, [sys.executable, "-m", "tidemill", "pull", f"{hub.url}/big.gguf"]
            )
        shown = _read_until(terminal, b"MiB")
        os.kill(process, signal.SIGINT)
        shown += _read_until(terminal, b"resumes what was downloaded")
        _, status = os.waitpid(process, 0)
        os.close(terminal)
        assert os.waitstatus_to_exitcode(status) == 130
        assert b"downloading" in shown and library.names() == ()
        hub.pause = 0.0
        done = subprocess.run(pull, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "big is in the library (1.0 MiB)" in done.stdout
    assert library.names() == ("big",)


def _read_until(terminal: int, end: bytes) -> bytes:
    shown = b""
    while end not in shown:
        ready, _, _ = select.select([terminal], [], [], 60)
        assert ready, shown
        try:
            shown += os.read(terminal, 65536)
        except OSError:  # the other end was closed
            assert end in shown, shown
    return shown


def test_the_adapters_of_a_created_model_must_fit(
    library: Library, call: Call, tmp_path: Path
) -> None:
    write_folder(tmp_path / "tiny")
    write_adapter(tmp_path / "lora")
    call("create", "mine", "--from", "./tiny", "--adapter", "lora")
    with pytest.raises(TidemillError, match=r"lora cannot be used with brook: .*k_proj"):
        call("create", "other", "--from", "brook", "--adapter", "lora")
    verse, ahoy = (str(bundled_models()["brook"] / name) for name in ("lora-verse", "soft-ahoy"))
    with pytest.raises(TidemillError, match=r"ahoy is not added up with other.*prompt adapter"):
        call("create", "other", "--from", "brook", "--adapter", verse, "--adapter", ahoy)
    assert library.names() == ("mine",)
