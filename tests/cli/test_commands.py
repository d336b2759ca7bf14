"""The command line as a user calls it; errors are one line with a remedy, never a traceback."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.tiny_folder import write_folder

from tests.loading.test_kind import write_vocabulary
from tidemill.base.errors import TidemillError
from tidemill.cli import main
from tidemill.cli.doctor import doctor
from tidemill.cli.machine import human_bytes, parse_bytes
from tidemill.cli.other_flags import OTHER_COMMANDS, OTHER_FLAGS
from tidemill.loading.locate import bundled_models
from tidemill.worker.packed_store import Entry, PackedStore

BROOK = bundled_models()["brook"]


def tidemill(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidemill", *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_help_and_version() -> None:
    text = tidemill("--help").stdout
    for command in ("serve", "run", "bench", "show", "list", "doctor"):
        assert re.search(rf"^  {command} ", text, re.MULTILINE), text
    assert tidemill("--version").stdout.startswith("tidemill ")


def test_an_argument_that_is_no_text() -> None:
    name = os.fsdecode(b"caf\xe9")
    for arguments in (("serve", name), ("show", name), ("run", "brook", name)):
        result = tidemill(*arguments)
        assert result.returncode == 2 and "Traceback" not in result.stderr
        assert f"error: argument {len(arguments)} is not UTF-8" in result.stderr


def test_a_command_is_the_same_alone_and_among_all() -> None:
    everything = main.app_of([])
    assert list(everything.commands) == list(main.COMMANDS)
    for name in main.COMMANDS:
        alone = main.app_of([name, "--help"])
        assert list(alone.commands) == [name]
        texts = []
        for command in (alone.commands[name], everything.commands[name]):
            with command.make_context(name, [], resilient_parsing=True) as context:
                texts.append(command.get_help(context))
        assert texts[0] == texts[1] and "--help" in texts[0]
    assert "Did you mean 'doctor'" in tidemill("docto").stderr


def test_packed_lists_and_clears(tmp_path: Path) -> None:
    store = PackedStore(tmp_path)
    with store.locked():
        store.write(Entry("k", "a-model", "c", 5, 0), [memoryview(b"12345")])
    listed = tidemill("packed", "--packed-cache", str(tmp_path)).stdout
    assert "a-model" in listed and "1 kept" in listed
    cleared = tidemill("packed", "--clear", "--packed-cache", str(tmp_path)).stdout
    assert cleared.startswith("removed ") and store.entries() == []
    for wrong in ("", str(tmp_path / "lock"), "off"):
        refused = tidemill("packed", "--packed-cache", wrong)
        assert refused.returncode == 2 and "--packed-cache" in refused.stderr


def test_run_answers_one_prompt(tmp_path: Path) -> None:
    by_argument = tidemill("run", "brook", "Who are you?", "--seed", "1")
    by_pipe = tidemill("run", "--seed", "1", stdin="Who are you?\n")
    assert by_argument.returncode == by_pipe.returncode == 0, by_argument.stderr
    assert by_argument.stdout == by_pipe.stdout and by_pipe.stdout.strip()
    assert by_pipe.stderr == "", "only the answer, when all goes well"
    short = tidemill("run", "brook", "Tell a story.", "--max-tokens", "3", "--stats")
    assert "(3 tokens, first after" in short.stderr


def test_show_list_doctor() -> None:
    shown = tidemill("show").stdout
    for line in ("parameters", "layers.*.attn.q.weight", "bfloat16", "chat template"):
        assert line in shown
    assert "layers.0.attn.q.weight" in tidemill("show", "--tensors").stdout
    assert re.search(r"brook +bundled", tidemill("list").stdout)
    report = tidemill("doctor", "--no-bandwidth").stdout
    assert "kernels that run here" in report and "will be used" in report
    assert "torch backend" in report


def test_brackets_are_no_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tidemill.cli.machine.installed", lambda package: None)
    doctor(bandwidth=False, cluster=None, as_json=False)
    assert "pip install 'tidemill[torch]'" in " ".join(capsys.readouterr().out.split())


def test_list_finds_models_in_folders(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"x" * 3000)
    (tmp_path / "b.gguf").write_bytes(b"x" * 1024)
    (folder / "gone.safetensors").symlink_to(tmp_path / "nowhere")
    text = tidemill("list", str(tmp_path)).stdout
    assert str(folder) in text and "2.9 KiB" in text and "b.gguf" in text


def test_a_vocabulary_and_parts_are_called_that(tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / "v.gguf")
    for part in (1, 2):
        (tmp_path / f"m-Q8_0-0000{part}-of-00002.gguf").write_bytes(b"x" * 1024)
    (tmp_path / "mmproj-m.gguf").write_bytes(b"x")
    first, *others = tidemill("list", str(tmp_path)).stdout.splitlines()[2:]
    assert "m-Q8_0-00001-of-00002.gguf" in first and "2.0 KiB" in first
    assert len(others) == 1 and re.search(r"v\.gguf +folder, a vocabulary alone", others[0])
    shown = tidemill("show", str(path))
    assert shown.returncode == 0 and "none: a vocabulary alone" in shown.stdout
    assert "262 tokens" in shown.stdout
    refused = tidemill("run", str(path), "hi")
    assert refused.returncode == 2 and "a vocabulary without weights" in refused.stderr


def test_types_are_taken_in_any_case(tmp_path: Path) -> None:
    assert tidemill("run", "brook", "hi", "--quantize", "Q8_0", "--max-tokens", "2").stdout
    refused = tidemill("run", "brook", "hi", "--quantize", "Q5")
    assert refused.returncode == 2
    assert "error: --quantize is one of none, q8_0, q4_0, int8, not 'Q5'" in refused.stderr
    for given in ("Q4_K_S", "Q6_K"):
        made = tidemill("quantize", "brook", str(tmp_path / f"{given}.gguf"), "--type", given)
        assert made.returncode == 0, made.stderr
    refused = tidemill("quantize", "brook", str(tmp_path / "x.gguf"), "--type", "Q5_K_M")
    assert refused.returncode == 2 and "'Q5_K_M'" in refused.stderr and "q6_k" in refused.stderr


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("serve", "--port", "0", "/no/such/model"), 2, "no such file"),
        (("serve", "--port", "0", "NOTES"), 2, "neither a model folder nor a GGUF file"),
        (("serve", "--port", "0", "EMPTY"), 2, "no config.json found"),
        (("serve", "--port", "0", "STRANGE"), 1, "architecture"),  # and not its missing vocabulary
        (("run", "EMPTY", "hi"), 2, "no config.json found"),
        (("run", "STRANGE", "hi"), 1, "architecture"),
        (("serve", "--port", "99999"), 2, "from 0 to 65535"),
        (("serve", "--port", "0", "--kv-memory", "1KiB"), 1, "KV block"),
        (("serve", "--port", "0", "--kv-memory", "lots"), 2, "4GiB"),
        (("serve", "--port", "0", "--quantize", "q9"), 2, "q8_0"),
        (("serve", "--port", "0", "--block-size", "7"), 2, "--block-size: must be one of 16"),
        (("serve", "--port", "0", "--log-level", "loud"), 2, "--log-level"),
        (("serve", "--port", "0", "--max-model-len", "9999999"), 2, "positions"),
        (("serve", "--port", "0", "--isa", "neon"), 2, "neon"),
        (("serve", "--port", "0", "--kv-memory", "400TiB"), 1, "of memory; give less"),
        (("serve", "--kv-memroy", "1GiB"), 2, "'--kv-memory'"),
        (("serve", "--gpu-memory-utilization", "0.9"), 2, "by --kv-memory 4GiB"),
        (("serve", "-c", "4096"), 2, "--max-model-len"),
        (("push", "x"), 2, "models are not published"),
        (("run", "brook", "two", "words"), 2, "in quotes"),
        (("serve", "--dtype", "f16"), 2, "auto, float32, bfloat16"),
        (("run", "brook", "hi", "--top-p", "7"), 2, "top_p"),
        (("run", "brook", "hi", "--speculate", "mtp"), 2, "no MTP layer"),
        (("run", "brook"), 2, "the prompt is empty: standard input is no terminal"),
        (("run", "Who are you?"), 2, "name a model before it"),
        (("show", "/no/such/model"), 2, "no such file"),
        (("list", "/no/such/folder"), 2, "not a folder"),
        (("bench", "--url", "http://127.0.0.1:1/v1"), 1, "Is it running"),
        (("bench", "--concurrency", "0"), 2, "at least 1"),
        (("bench", "--rate", "1e308"), 2, "at most 1,000,000 requests per second"),
        (("explain", ""), 2, "the id is empty"),
        (("explain", "x", "--svg", "/no/such/x.svg"), 2, "--svg /no/such/x.svg"),
        (("profile", "--trace", "/no/such/trace"), 2, "--trace /no/such/trace"),
        (("plan", "--plot", "/no/such/plot.svg"), 2, "--plot /no/such/plot.svg"),
        (("plan", "--concurrency", "70000"), 2, "--concurrency must be from 1 to 65536"),
        (("man", "--to", "/proc/x"), 2, "--to /proc/x: it cannot be written"),
        (("dashboards", "/proc/x"), 2, "DIR /proc/x: it cannot be written"),
        (("install-service", "--to", "/proc/x"), 2, "--to /proc/x: it cannot be written"),
        (("serve", "--port", "0", "--kv-disk", "/proc/kv"), 2, "error: kv_disk: the folder /proc"),
        (("run", "brook", "hi", "--kv-disk", "/proc/kv"), 2, "error: kv_disk: the folder /proc"),
        (("run", "brook", "hi", "--kv-ram", "lots"), 2, "4GiB"),
    ],
)
def test_errors_are_one_line_with_a_remedy(
    args: tuple[str, ...], code: int, says: str, tmp_path: Path
) -> None:
    (tmp_path / "NOTES").write_text("not a model")
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "STRANGE").mkdir()
    (tmp_path / "STRANGE" / "config.json").write_text('{"architectures": ["Nobodys"]}')
    args = tuple(str(tmp_path / a) if a.isupper() else a for a in args)
    done = tidemill(*args)
    assert done.returncode == code, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert len(lines) == 1 and says in lines[0], done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "flags", [("--chat-template", "/no/file"), ("--tool-format", "nobodys"),
              ("--reasoning-format", "nobodys")],
)  # fmt: skip
def test_what_is_wrong_with_the_text_side_is_said_before_the_weights_are_loaded(
    flags: tuple[str, str],
) -> None:
    done = tidemill("serve", "--port", "0", *flags)
    assert done.returncode == 2 and f"error: {flags[0]}: " in done.stderr
    assert "loading" not in done.stderr


def test_a_log_of_json_is_json_from_its_first_line_to_the_error_that_ends_it() -> None:
    done = tidemill("serve", "--port", "0", "--log-format", "json", "--log-level", "error",
                    "--host", "0.0.0.0", "--insecure", "--kv-memory", "400TiB")  # fmt: skip
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1 and len(events) >= 3
    assert events[0]["message"].startswith("warning: --insecure on 0.0.0.0")
    assert events[-1]["level"] == "error" and "--kv-memory" in events[-1]["message"]


def test_help_is_whole() -> None:
    text = " ".join(tidemill("-h").stdout.split())
    assert "answer one prompt (an argument, or piped in)." in text
    assert "[auto|float32|bfloat16]" in tidemill("run", "-h").stdout


def test_hints_are_about_flags_that_serve_lacks_and_name_those_that_there_are() -> None:
    commands = main.app_of([]).commands
    assert not set(OTHER_FLAGS) & {name for p in commands["serve"].params for name in p.opts}
    assert not set(OTHER_COMMANDS) & set(commands)
    parameters = [p for c in commands.values() for p in c.params]
    known = {name for p in parameters for name in (*p.opts, *p.secondary_opts)}
    assert set(re.findall(r"(?<!\w)--[a-z][a-z-]+", " ".join(OTHER_FLAGS.values()))) <= known


def test_a_port_in_use_is_known_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = tidemill("serve", "--port", str(port))
    assert done.returncode == 1
    assert f"port {port}" in done.stderr and "--port" in done.stderr
    assert "loading" not in done.stderr


def test_a_model_that_is_not_there_is_said_whatever_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = tidemill("serve", "/no/such/model", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2 and "no such file" in done.stderr


class _Terminal:
    """`tidemill run` at a pseudo-terminal."""

    def __init__(self, *args: str) -> None:
        self.text = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(sys.executable, [sys.executable, "-m", "tidemill", "run", *args])

    def wait_for(self, pattern: str, seconds: float = 20) -> str:
        """Read until the pattern came; returns what came before and with it."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.text, re.DOTALL)):
            assert time.monotonic() < deadline, f"{pattern!r} did not come:\n{self.text}"
            if select.select([self.fd], [], [], 0.1)[0]:
                self.text += os.read(self.fd, 65536).decode(errors="replace")
        seen, self.text = self.text[: found.end()], self.text[found.end() :]
        return seen

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def interrupt_until(self, pattern: str) -> str:
        """Ctrl-C, again if it fell between the prompt and the wait for a key (Python misses it)."""
        for _ in range(10):
            self.type("\x03")
            try:
                return self.wait_for(pattern, seconds=2)
            except AssertionError:
                continue
        raise AssertionError(f"Ctrl-C brought no {pattern!r}:\n{self.text}")

    def end(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_conversation_at_a_terminal() -> None:
    terminal = _Terminal("--stats")
    terminal.wait_for(r">>> ")
    terminal.type("/help\r")
    assert "/clear" in terminal.wait_for(r"Ctrl-C.*?>>> ")
    terminal.type("Who are you?\r")
    assert terminal.wait_for(r"tokens/s\).*?>>> ")
    terminal.type("one \\\r")
    terminal.wait_for(r"\.\.\. ")
    terminal.type("two\r")
    terminal.wait_for(r"tokens/s\).*?>>> ")
    terminal.type("\x1b[200~three\rfour\x1b[201~\r")
    pasted = terminal.wait_for(r"tokens/s\).*?>>> ")
    assert pasted.count("tokens/s") == 1, "a paste is one turn"
    terminal.type("/show messages\r")
    assert re.search(r"user: three\s+four\r", terminal.wait_for(r"four\r.*?>>> "))
    terminal.type("/nonsense\r")
    assert "no command" in terminal.wait_for(r"Ctrl-C.*?>>> ")
    terminal.type("/clear\r")
    assert "(forgotten)" in terminal.wait_for(r"\).*?>>> ")
    terminal.interrupt_until(r"\(/exit leaves\).*?>>> ")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_ctrl_c_stops_the_answer_and_not_the_program() -> None:
    # A high temperature and a template of one's own: it goes on until it is stopped.
    terminal = _Terminal("--temperature", "100", "--seed", "1")
    terminal.wait_for(r">>> ")
    terminal.type("Go on and on.\r")
    time.sleep(0.4)
    terminal.interrupt_until(r"(\(stopped\)|\(/exit leaves\)).*?>>> ")
    terminal.type("/exit\r")
    assert terminal.end() == 0


def test_sizes() -> None:
    assert parse_bytes("x", "4GiB") == 4 * 2**30
    assert parse_bytes("x", "1.5g") == 3 * 2**29
    assert parse_bytes("x", "512M") == 2**29
    assert parse_bytes("x", "100") == 100
    assert parse_bytes("x", None) is None
    for bad in ("", "G", "1X", "-1", "0", "nan", "inf", "1e999"):
        with pytest.raises(TidemillError):
            parse_bytes("x", bad)
    assert human_bytes(3 * 2**29) == "1.5 GiB" and human_bytes(10) == "10 B"


def test_a_model_of_vectors_is_shown_as_one(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", modules__json=[
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling",
         "type": "sentence_transformers.models.Pooling"},
    ])  # fmt: skip
    shutil.copy(BROOK / "tokenizer.json", folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    shown = tidemill("show", str(folder)).stdout
    assert re.search(r"made for +vectors, by mean; it generates no text", shown)
    refused = tidemill("run", str(folder), "hi")
    assert refused.returncode == 1 and "/v1/embeddings and LLM.embed() are for it" in refused.stderr
