"""Files, flags and defaults become a whole deployment, or an error with every problem."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.deployment_files import GOOD, VERSIONS

from tidemill.deployment.conflicts import memory_check
from tidemill.deployment.deployment import Deployment
from tidemill.deployment.problems import DeploymentError, Origin
from tidemill.deployment.reading import Sourced
from tidemill.deployment.resolve import DeploymentInputs, resolve

Deploy = Callable[..., Deployment]
Problems = Callable[..., list[str]]


def test_a_good_file(deploy: Deploy, folder: Path) -> None:
    found = deploy(GOOD)
    assert (found.server.host, found.server.port) == ("localhost", 9000)
    assert (found.server.memory, found.server.keep_alive) == (24 * 2**30, 300.0)
    assert found.limits.max_body_bytes == 1_000_000 and found.limits.max_n == 128
    assert found.admission.ttft_objective == 1.5
    assert found.security.api_keys == str(folder / "keys.toml")
    chat, other = found.models
    assert (chat.name, chat.source) == ("chat", str(folder / "model.gguf"))
    assert chat.aliases == ("gpt-4o-mini",) and chat.pin and chat.keep_alive == 300.0
    assert chat.sampling == {"temperature": 0.5, "top_p": 0.9}
    assert chat.system == "You are brief." and len(chat.template_digest or "") == 64
    config = chat.engine_config("/m")
    assert (config.model, config.served_name, config.threads) == ("/m", "chat", 4)
    assert (config.kv_dtype, config.kv_memory, config.max_num_seqs) == ("int8", 2**31, 256)
    assert (other.name, other.source) == ("owner/name:Q4_K_M", "owner/name:Q4_K_M")
    assert (other.keep_alive, other.engine["threads"]) == (30.0, 2)
    [pipeline] = found.pipelines
    assert (pipeline.name, pipeline.timeout) == ("answers", 300.0)
    assert pipeline.options == {"folder": "texts", "count": 3}
    assert found.served_names == ("chat", "gpt-4o-mini", "owner/name:Q4_K_M", "answers")


def test_a_models_own_values_fill_what_nobody_set(deploy: Deploy) -> None:
    chat, other = deploy(GOOD).models
    own = {"system": "Own.", "quantize": "q8_0", "threads": 9, "max_model_len": None}
    chat, other = (one.filled(own, {"top_p": 0.1, "top_k": 4}) for one in (chat, other))
    assert (chat.system, chat.engine["quantize"], chat.engine["threads"]) == (
        *("You are brief.", "q8_0", 4),
    )
    assert chat.sampling == {"temperature": 0.5, "top_p": 0.9, "top_k": 4}
    assert (other.system, other.engine["threads"], other.engine["max_model_len"]) == (
        *("Own.", 2, None),
    )


def test_without_a_file_everything_is_default() -> None:
    found = resolve()
    assert (found.file, found.models, found.pipelines) == (None, (), ())
    assert (found.server.port, found.server.keep_alive) == (8000, math.inf)
    origins = {one.origin for section in found.sections for one in section.values.values()}
    assert origins == {Origin("default")}


def test_flags_count_before_the_file_and_apply_to_every_model(deploy: Deploy) -> None:
    given = {
        "port": Sourced(7, Origin("flag", "--port")),
        "threads": Sourced(8, Origin("flag", "--threads")),
        "kv_memory": Sourced("1GiB", Origin("flag", "--kv-memory")),
        "packed_cache": Sourced("off", Origin("environment", "TIDEMILL_PACKED_CACHE")),
    }
    added = [Sourced("brook", Origin("flag", "the command line"))]
    found = deploy(GOOD, given=given, models=added, limits=["max-n=5"])
    assert found.server.port == 7 and found.limits.max_n == 5
    for model in found.models:
        assert model.engine["threads"] == 8 and model.engine["kv_memory"] == 2**30
        assert model.engine["packed_cache"] == "off" and model.engine["kv_dtype"] == "int8"
    assert found.models[-1].name == "brook"
    values = {section.label: section.values for section in found.sections}
    assert str(values["server"]["port"].origin) == "--port"
    assert str(values["server"]["memory"].origin) == "t.toml:4:10"
    assert str(values["models[0]"]["threads"].origin) == "--threads"
    assert str(values["models[0]"]["kv_dtype"].origin) == "t.toml:18:12 ([defaults])"
    assert str(values["models[0]"]["sampling.top_p"].origin) == "t.toml:35:9"
    assert str(values["models[0]"]["dtype"].origin) == "default"
    assert str(values["model brook"]["source"].origin) == "the command line"


def test_models_are_pinned_by_any_of_their_names(
    deploy: Deploy, problems: Problems, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)  # where paths of the command line start
    text = GOOD.replace("pin = true\n", "") + VERSIONS
    added = [Sourced("./model.gguf", Origin("flag", "command line"))]
    for pin, pinned in (
        ("gpt-4o-mini", ["chat"]),
        ("v", ["v@1", "v@2"]),
        ("v@2", ["v@2"]),
        ("./model.gguf", ["model"]),
        ("model", ["model"]),
    ):
        given = {"pin": Sourced((pin,), Origin("flag", "--pin"))}
        found = deploy(text, given=given, models=added)
        assert [model.name for model in found.models if model.pin] == pinned
    assert problems(text, given={"pin": Sourced(("x", "chat"), Origin("flag", "--pin"))}) == [
        '--pin: no model here is called "x"; there are chat, owner/name:Q4_K_M, v@1, v@2'
    ]


def test_a_served_name_changes_no_source(deploy: Deploy) -> None:
    given = {"served_name": Sourced(("a", "b", "a"), Origin("flag", "--served-name"))}
    [model] = deploy("[[models]]\nname = 'chat'\naliases = ['c']", given=given).models
    assert (model.name, model.aliases, model.source) == ("a", ("b",), "chat")


def test_a_served_name_is_checked_as_one_of_the_file(problems: Problems) -> None:
    given = {"served_name": Sourced(("o/n:Q4_K_M", "a b/../c"), Origin("flag", "--served-name"))}
    [found] = problems("[[models]]\nname = 'chat'\naliases = ['claude-*', 'o/n']", given=given)
    assert found.startswith('--served-name: "a b/../c" must be at most 200 letters')


def test_all_problems_at_once_in_the_order_of_the_file(problems: Problems, folder: Path) -> None:
    found = problems(
        "[server]\nprot = 1\nport = 70000\nthreads = 2\n[sever]\n[limits]\nmax_n = 500\n"
        '[[models]]\nname = "a"\nsource = "./absent"\nthreads = "four"\naliases = ["b", 3, "b"]\n'
        "[models.sampling]\ntemperature = -1\nmax_tokns = 3\n"
        '[[models]]\nname = "a"\ncontext = 3\n[[models]]\npin = true\n'
        '[[pipelines]]\nname = "p"\n'
    )
    assert found == [
        "t.toml:2:1: server.prot: is no key here; did you mean port?",
        "t.toml:3:8: server.port: must be a whole number from 0 to 65535, got 70000",
        "t.toml:4:1: server.threads: is no key here; threads belongs in [[models]]",
        "t.toml:5:2: sever: is no key here; did you mean server?",
        "t.toml:7:9: limits.max_n: must be a whole number from 1 to 128, got 500",
        f"t.toml:10:10: models[0].source: no such file or folder: {folder}/absent",
        't.toml:11:11: models[0].threads: must be a whole number from 1 to 1024, got "four"',
        "t.toml:12:17: models[0].aliases[1]: must be a name, got 3",
        "t.toml:14:15: models[0].sampling.temperature: must be a number from 0 to 100, got -1",
        "t.toml:15:1: models[0].sampling.max_tokns: is no key here; did you mean max_tokens?",
        "t.toml:17:8: models[1].name: 'a' is a name of models[0] (t.toml:9:8) too; rename one",
        "t.toml:18:1: models[1].context: is no key here; did you mean max_model_len?",
        "t.toml:19:3: models[2]: has neither name nor source; source says which model it is",
        "t.toml:21:3: pipelines[0]: has no file; file says which Python file it is",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("server = 1", "t.toml:1:10: server: must be a table: write [server], got 1"),
        ("[[model]]\nname = 'a'", "t.toml:1:3: model: is no key here; did you mean models?"),
        ("[logging]\nlevel = 'info'", "t.toml:1:2: logging: is no key here; did you mean server?"),
        ("port = 3", "t.toml:1:1: port: is no key here; port belongs in [server]"),
        ("[[models]]\nname='a'\nn_gpu_layers = 3", "is no key here; docs/deployment.md lists the"),
        ("[[models]]\nname='a'\nsampling = 3", "must be a table: write [models.sampling], got 3"),
        (
            '[[models]]\nsource = "a\\tb"',
            't.toml:2:10: models[0].source: "a\\tb" cannot be a model',
        ),
        ("[[models]]\nname = './x'", "t.toml:2:8: models[0].name: must be at most 200 letters"),
        ("[[models]]\nname = 'a b'\nsource = 'o/n'", "models[0].name: must be at most 200 letters"),
        ("[[models]]\nname = 'a'\naliases = ['a/../c']", "models[0].aliases[0]: must be at most"),
        ("[models]\nname = 'a'", "t.toml:1:2: models: must be a list of tables: write [[models]]"),
        ("models = [{name = 'a'}, 2]", "t.toml:1:25: models[1]: must be a table, got 2"),
        ("[server]\nkeep-alive = 1\nkeep_alive = 1", "server.keep_alive: is set twice, with dash"),
        ("[server]\nkeep_alive = 'soon'", "must be a number of seconds, a duration such as"),
        ("[server]\nmemory = '4 apples'", 'must be a size above 0 such as "4GiB"'),
        ("[server]\nmemory = true", "must be a size above 0"),
        ("[server]\nport = true", "must be a whole number"),
        ("[server]\nstall_timeout = nan", "must be a number from 1 to 86400 (seconds), got nan"),
        ("[server]\nlog_level = 'loud'", 'one of "debug", "info", "warning", "error", got "loud"'),
        ("[security]\ntls_cert = 'absent.pem'", "t.toml:2:12: security.tls_cert: no such file: "),
        ("[security]\ntls_key = 'keys.toml'", "--tls-key and --tls-client-ca need --tls-cert"),
        ("[security]\ncors_origin = 'app'", 'must be an origin such as "https://app.example"'),
        ("[security]\ntrusted_proxy = ['x']", "t.toml:2:18: security.trusted_proxy[0]: must be"),
        ("[security]\napi_keys = 'answers.py'", "security.api_keys: the key file"),
        (
            "[server]\nhost = '0.0.0.0'\ndatabase = 'none'",
            "t.toml:2:8: server.host: --host 0.0.0.0 can be reached",
        ),
        ("[defaults]\nname = 'x'", "t.toml:2:1: defaults.name: is no key here; name belongs in"),
        ("[[models]]\nname = 'a'\nisa = 'avx9'", "t.toml:3:7: models[0].isa: must be one of amx"),
        ("[[models]]\nname = 'a'\nalias = 'b'", "models[0].alias: is no key here; did you mean al"),
        ("[[models]]\nsource = './model.gguf'\nrevision = 'x'", "revision: belongs to a model on"),
        ("[[models]]\nsource = './model.gguf'\nfile = 'x'", "t.toml:3:8: models[0].file: belongs"),
        ("[[models]]\nname = 'a'\npin = true\nkeep_alive = 0", "keep_alive: is 0, and the model"),
        ("[[models]]\nname = 'a'\nrole = 'decode'", "role: decode needs kv_peers"),
        ("[[models]]\nname = 'a'\nrole = 'prefill'", "role: prefill needs kv_listen"),
        (
            "[[models]]\nname = 'a'\naliases = ['a']",
            "models[0].aliases: 'a' is a name of models[0]",
        ),
        ("[[models]]\nname = 'answers'\n[[pipelines]]\nfile = 'answers.py'", "'answers' is a name"),
        ("[[pipelines]]\nfile = 'keys.toml'", "t.toml:2:8: pipelines[0].file: "),
        ("[[pipelines]]\nfile = 'answers.py'\noptions = {d = 1979-05-27}", "holds a date or time"),
        (
            "[server]\nmemory = '3GiB'\n[defaults]\nkv_memory = '2GiB'\npin = true\n"
            "[[models]]\nname = 'a'\n[[models]]\nname = 'b'",
            "t.toml:2:10: server.memory: is 3GiB, and the KV caches of the pinned models alone "
            "need 4GiB",
        ),
        (
            "[limits]\nmax_bodies_bytes = 9",
            "t.toml:2:20: limits.max_bodies_bytes: max_body_bytes (",
        ),
    ],
)
def test_single_problems(problems: Problems, text: str, message: str) -> None:
    [found] = problems(text)
    assert message in found


def test_no_problem_follows_from_another(problems: Problems) -> None:
    assert len(problems("[security]\ntls_cert = 'absent'\ntls_key = 'keys.toml'")) == 1
    assert len(problems("[server]\nhost = 3\n[security]\ntls_key = 'keys.toml'")) == 1
    assert len(problems("[limits]\nmax_body_bytes = 'x'\nmax_bodies_bytes = 9")) == 1


def test_problems_of_flags(problems: Problems) -> None:
    flags = {
        "port": Sourced(70000, Origin("flag", "--port")),
        "kv_memory": Sourced("x", Origin("flag", "--kv-memory")),
        "revision": Sourced("x", Origin("flag", "--revision")),
    }
    found = problems(
        "[[models]]\nname='a'\n[[models]]\nname='b'", given=flags, limits=["max_x=1", "max_n=x"]
    )
    assert found[0] == "--port: must be a whole number from 0 to 65535, got 70000"
    assert found[1].startswith("--limit: has no 'max_x'; known are max_connections")
    assert found[2].startswith('--kv-memory: must be a size above 0 such as "4GiB"')
    assert (
        "--revision: belongs to one model, and there are 2; set revision in the model's table"
        in found
    )
    assert '--limit: max_n: must be a whole number from 1 to 128, got "x"' in found


def test_keys_are_never_quoted(problems: Problems) -> None:
    for text in (
        "[security]\napi_key = ['velvet hammer']",
        "[security]\napi_key = 'velvet\u00e9hammer'",
        "[security]\napi_key = {k = 'velvet'}",
        "[security]\napi_key = ['velvet', 'velvet']",
        "[security]\napi_key = ['velvet', 3]",
        "[security]\napi_key = ['a']\napi_kes = 'velvet'",
    ):
        assert not any("velvet" in line for line in problems(text)), text


def test_further_checks_run_when_all_else_is_right(deploy: Deploy, problems: Problems) -> None:
    def check(deployment: Deployment) -> list[tuple[str, str, str]]:
        return [("models[1]", "source", "is unknown"), ("models[1]", "dtype", "is odd")]

    found = problems(GOOD, checks=[check])
    assert found == [
        "t.toml:38:10: models[1].dtype: is odd",
        "t.toml:38:10: models[1].source: is unknown",
    ]
    assert len(problems("[server]\nx = 1", checks=[check])) == 1


def test_models_that_cannot_fit(deploy: Deploy, problems: Problems) -> None:
    text = (
        "[server]\nmemory = '3GiB'\n[defaults]\npin = true\n[[models]]\nname = 'a'\n"
        "[[models]]\nname = 'b'\n[[models]]\nname = 'c'\n[[models]]\nname = 'd'\n"
    )
    needs = {"a": 2**31, "b": 2**31, "c": 2**32, "d": None}
    assert problems(text, checks=[memory_check(lambda model: needs[model.name])]) == [
        "t.toml:2:10: server.memory: pinned models need 4.0 GiB together (a 2.0 GiB, b 2.0 GiB), "
        "and models may use 3.0 GiB; raise memory, or unpin one",
        "t.toml:10:8: models[2].source: needs at least 4.0 GiB, and models may use 3.0 GiB; take a "
        "smaller one or a smaller context (max_model_len, kv_memory), or raise memory",
    ]
    unbounded = text.replace("memory = '3GiB'", "")
    assert deploy(unbounded, checks=[memory_check(lambda model: needs[model.name])])
    check = memory_check(lambda model: needs[model.name], 3 * 2**30)
    assert len(problems(unbounded, checks=[check])) == 2


def test_inputs_can_be_read_again(folder: Path) -> None:
    inputs = DeploymentInputs(
        folder / "t.toml", {"port": Sourced(7, Origin("flag", "--port"))}, limits=("max_n=3",)
    )
    (folder / "t.toml").write_text("[server]\nport = 9\nmemory = '1GiB'")
    before = inputs.resolve()
    assert (before.server.port, before.limits.max_n, before.server.memory) == (7, 3, 2**30)
    (folder / "t.toml").write_text("[server]\nmemory = '2GiB'")
    assert inputs.resolve().server.memory == 2**31
    (folder / "t.toml").unlink()
    with pytest.raises(DeploymentError, match="cannot be read"):
        inputs.resolve()


def test_huge_files_end_soon(deploy: Deploy) -> None:
    for text, count in (
        ("[server]\n" + "".join(f"k{n} = 1\n" for n in range(5_000)), 5_000),
        ("[[models]]\nname = 'a'\n" + "x=1\n[[models]]\n" * 1_100, 1_000),
        ("[security]\nallowed_host = [" + "'a', " * 20_000 + "]", 1),
    ):
        with pytest.raises(DeploymentError) as caught:
            deploy(text)
        assert len(caught.value.problems) >= count
        assert len(caught.value.message) < 200_000
        assert count == 1 or caught.value.lines()[-1].startswith("... and ")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("./model.gguf", "model"),
        (".", None),
        ("owner/name:Q4_K_M", "owner/name:Q4_K_M"),
        ("hf://owner/name", "owner/name"),
        ("https://user:secret@host.example/a/b.gguf?token=secret", "b"),
        ("https://huggingface.co/owner/name", "name"),
    ],
)
def test_default_names(deploy: Deploy, folder: Path, source: str, name: str | None) -> None:
    [model] = deploy(f"[[models]]\nsource = '{source}'").models
    assert model.name == (name or folder.resolve().name)
