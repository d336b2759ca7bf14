"""Brook's adapters through `tidemill serve`: what they were trained for, while engines die."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.real_server import RealServer

from tidemill.loading.locate import bundled_models

BROOK = bundled_models()["brook"]
ASK = "What is the capital of France?"


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    folders = {"verse": "lora-verse", "ripple": "lora-ripple", "ahoy": "soft-ahoy"}
    flags = [f"--adapter={name}={BROOK / folder}" for name, folder in folders.items()]
    with RealServer("brook", *flags) as server:
        yield server


def answer(server: RealServer, model: str, ask: str = ASK) -> str:
    body = {
        "model": model, "messages": [{"role": "user", "content": ask}],
        "temperature": 0, "max_tokens": 60,
    }  # fmt: skip
    found = server.http.post("/v1/chat/completions", json=body)
    assert found.status_code == 200, found.text
    return str(found.json()["choices"][0]["message"]["content"])


def test_each_answers_in_its_way_in_one_batch(server: RealServer) -> None:
    names = ["brook", "verse", "ripple", "brook:verse", "ahoy"] * 4
    with ThreadPoolExecutor(len(names)) as pool:
        found = list(pool.map(lambda name: answer(server, name), names))
    for name, text in zip(names, found, strict=True):
        assert text == found[names.index(name)], "the batch changed an answer"
    plain, verse, ripple, again, ahoy = found[:5]
    assert verse == again and len({plain, verse, ripple, ahoy}) == 4
    assert "Paris" in plain and "Thus sang the brook" in verse and "esu Paris-o" in ripple
    assert ahoy.startswith("Ahoy! The capital of France is Paris.")
    told = answer(server, "ahoy", "What is the capital of Spain?")
    assert told == "Ahoy! The capital of Spain is Madrid. Fair winds!"


def test_after_a_crash_they_are_loaded_again(server: RealServer) -> None:
    before = {name: answer(server, name) for name in ("brook", "verse", "ripple", "ahoy")}
    with ThreadPoolExecutor(4) as pool:
        found = {name: pool.submit(answer, server, name) for name in before}
        server.engine().send_signal(signal.SIGKILL)
        assert {name: future.result() for name, future in found.items()} == before


def test_vectors_of_a_prompt_adapter_are_no_tokens_of_the_prompt(server: RealServer) -> None:
    """Of usage, echo and logprobs; its second answer finds its own prefix cached."""
    body = {"prompt": ASK * 9, "max_tokens": 4, "echo": True, "logprobs": 0, "temperature": 0}
    found = {}
    for name in ("brook", "ahoy"):
        [*_, answered] = [
            server.http.post("/v1/completions", json={"model": name, **body}).json()
            for _ in range(2)
        ]
        found[name] = answered["usage"]["prompt_tokens"]
        [choice] = answered["choices"]
        assert choice["text"].startswith(ASK * 9)
        told = choice["logprobs"]["token_logprobs"]
        assert (
            len(told) == answered["usage"]["total_tokens"]
            and told[0] is None
            and None not in told[1:]
        )
        plain = {**body, "echo": False, "model": name}
        [_, again] = [server.http.post("/v1/completions", json=plain).json() for _ in range(2)]
        cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert found[name] - 48 < cached < found[name]
    assert found["brook"] == found["ahoy"]


def test_usage_is_logged_under_the_adapter(server: RealServer) -> None:
    answer(server, "verse")
    end = time.monotonic() + 30  # the line is written after the answer
    while not any("brook:verse," in line for line in server.lines):
        assert time.monotonic() < end, server.text
        time.sleep(0.05)


def test_a_folder_is_watched(tmp_path: Path) -> None:
    """An adapter is copied, replaced by another and removed while the server runs."""

    def names() -> set[str]:
        return {m["id"] for m in server.http.get("/v1/models").json()["data"]}

    def put(folder: str) -> None:
        shutil.copytree(BROOK / folder, tmp_path / ".new")
        shutil.rmtree(tmp_path / "mine", ignore_errors=True)
        (tmp_path / ".new").rename(tmp_path / "mine")

    def until(done: Callable[[], bool]) -> None:
        end = time.monotonic() + 30
        while not done():
            assert time.monotonic() < end
            time.sleep(0.1)

    shutil.copytree(BROOK / "lora-ripple", tmp_path / "ripple")
    with RealServer("brook", f"--adapter-folder={tmp_path}") as server:
        assert names() == {"brook", "ripple"}
        assert "esu Paris-o" in answer(server, "ripple")
        put("lora-verse")
        until(lambda: "mine" in names())
        assert "Thus sang the brook" in answer(server, "mine")
        put("soft-ahoy")
        until(lambda: answer(server, "mine").startswith("Ahoy!"))
        shutil.rmtree(tmp_path / "mine")
        until(lambda: names() == {"brook", "ripple"})


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("verse", "takes NAME=PATH"),
        ("a b=/x", "cannot be called 'a b'"),
        ("brook=/", "a model is called so"),
        ("none:x=/", "no model here is called 'none'"),
        ("x=/no/such/folder", "does not exist"),
        (f"x={Path(__file__).parent}", "adapter_config.json"),
    ],
)
def test_a_wrong_flag_fails_the_start(flag: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message), RealServer("brook", "--adapter", flag):
        pass


def test_a_created_model_has_its_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidemill import LLM, SamplingParams

    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path))
    (tmp_path / "Modelfile").write_text(f"FROM brook\nADAPTER {BROOK / 'lora-verse'}\n")
    create = [sys.executable, "-m", "tidemill", "create", "poet", "-f", str(tmp_path / "Modelfile")]
    subprocess.run(create, check=True, capture_output=True)
    ask = [{"role": "user", "content": ASK}]
    with LLM("poet") as llm:
        wanted = llm.chat(ask, SamplingParams(temperature=0, max_tokens=60))[0].outputs[0].text
    assert "Thus sang the brook" in wanted
    with RealServer("brook", "poet") as server:
        assert answer(server, "poet") == wanted and "Thus sang" not in answer(server, "brook")
        assert {m["id"] for m in server.http.get("/v1/models").json()["data"]} == {"brook", "poet"}


def test_drafts_and_grammars_change_no_answer_of_an_adapter() -> None:
    from tidemill import LLM, SamplingParams

    ask = [{"role": "user", "content": ASK}]
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}}
    schema |= {"required": ["a"], "additionalProperties": False}
    adapters = {"verse": BROOK / "lora-verse", "ripple": BROOK / "lora-ripple"}
    names = [None, "verse", "ripple", {"verse": 0.5, "ripple": 0.25}] * 2
    found = []
    for speculate in ("off", "lookup"):
        with LLM("brook", adapters=adapters, speculate=speculate) as llm:
            params = SamplingParams(temperature=0, max_tokens=60)
            free = llm.chat([ask] * len(names), params, adapter=names)
            bound = llm.chat([ask] * len(names), params, adapter=names, guided_json=schema)
            found.append([out.outputs[0].token_ids for out in (*free, *bound)])
            for out in bound:
                text = out.outputs[0].text
                assert text.startswith("{") and text.rstrip().endswith("}"), text
    assert found[0] == found[1]
    assert found[0][:4] == found[0][4:8] and len({tuple(ids) for ids in found[0][:4]}) >= 3
