"""Keys, roles, origins, host names and certificates around a fake engine."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.pki import make_pki
from helpers.scripted_engine import ScriptedEngine
from starlette.applications import Starlette

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.log import describe_exception, set_up_logging, summary
from tidemill.deployment.security import SecuritySettings
from tidemill.server.access.auth import by_address
from tidemill.server.access.keys import Role, StaticKeys, digest_of, read_keys
from tidemill.server.access.security import Security
from tidemill.server.app import build_app
from tidemill.server.transport.tls import Certificates

ADMIN, USER, METRICS = "admin-key-0123456789", "user-key-0123456789", "metrics-key-0123456789"
OPEN = {"/healthz", "/readyz", "/health", "/ping"}
TEXT = {"prompt": "hello"}


def _key_file(folder: Path, entries: list[dict[str, Any]]) -> Path:
    path = folder / "keys.json"
    path.write_text(json.dumps({"keys": entries}))
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def security(tmp_path_factory: pytest.TempPathFactory) -> Security:
    entries = [
        {"name": "root", "key": ADMIN, "role": "admin"},
        {"name": "ann", "sha256": digest_of(USER).hex(), "weight": 2.5},
        {"name": "prometheus", "key": METRICS, "role": "metrics"},
    ]
    path = _key_file(tmp_path_factory.mktemp("keys"), entries)
    return Security(keys=StaticKeys((), path), cors_origins=("https://app.example",))


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture(scope="module")
def http(engine: ScriptedEngine, security: Security) -> Iterator[httpx.Client]:
    with serving(fake_context(engine), security) as url, httpx.Client(base_url=url) as client:
        yield client


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def _routes(app: Any) -> list[tuple[str, str]]:
    while not isinstance(app, Starlette):
        app = app.app
    found = [(m, r.path) for r in app.routes for m in sorted(r.methods)]  # type: ignore[attr-defined]
    assert len(found) >= 10
    return sorted(set(found))  # some are another dialect's, too


ROUTES = _routes(build_app(fake_context(ScriptedEngine())))


@pytest.mark.parametrize(("method", "path"), [*ROUTES, ("GET", "/nothing"), ("PATCH", "/metrics")])
def test_every_route_but_the_probes_wants_a_key(http: httpx.Client, method: str, path: str) -> None:
    path = re.sub(r"\{.*?\}", "x", path)
    for headers in (
        {},
        _bearer("wrong"),
        {"authorization": f"Basic {USER}"},
        {"authorization": "Bearer"},
        {"x-api-key": "wrong"},
        {"x-api-key": USER, **_bearer("wrong")},
    ):
        for verb in (method, "HEAD", "OPTIONS", "PUT"):
            answer = http.request(verb, path, headers=headers, json={})
            if path in OPEN and verb in ("GET", "HEAD"):
                assert answer.status_code == 200
                continue
            if path in OPEN:
                assert answer.status_code == 405
                continue
            assert answer.status_code == 401, (verb, path, headers)
            assert answer.headers["www-authenticate"].startswith("Bearer")
            if verb != "HEAD":
                document = answer.json()  # Ollama's, TGI's and Cohere's are the message alone
                error = document.get("error", document.get("message"))
                if isinstance(error, dict):
                    kind = error.get("code", error["type"])  # Anthropic's errors have no codes
                    assert kind in ("invalid_api_key", "authentication_error", 401)
                    error = error["message"]
                assert "key" in error.lower() or "authorization" in error.lower()
                assert path not in error


def test_a_key_in_the_header_of_anthropics_clients(http: httpx.Client) -> None:
    assert http.get("/v1/models", headers={"x-api-key": USER}).status_code == 200
    assert http.get("/metrics", headers={"x-api-key": USER}).status_code == 403
    twice = [("x-api-key", USER), ("x-api-key", USER)]
    assert http.get("/v1/models", headers=twice).status_code == 401


def test_a_probe_without_a_key_says_next_to_nothing(http: httpx.Client) -> None:
    assert http.get("/readyz").json() == {"status": "ready"}
    assert "engine" in http.get("/readyz", headers=_bearer(USER)).json()


@pytest.mark.parametrize(
    ("key", "path", "status"),
    [
        *((ADMIN, "/metrics", 200), (ADMIN, "/v1/models", 200), (ADMIN, "/openapi.json", 200)),
        *((ADMIN, "/admin/models", 200), (USER, "/admin/models", 403)),
        *((USER, "/metrics", 403), (USER, "/v1/models", 200), (USER, "/openapi.json", 200)),
        *(
            (METRICS, "/metrics", 200),
            (METRICS, "/v1/models", 403),
            (METRICS, "/openapi.json", 403),
        ),
        *((USER, "/v1/models/../../etc/passwd", 404), (USER, "/v1/models/%2e%2e%2f%00", 404)),
    ],
)
def test_roles(http: httpx.Client, key: str, path: str, status: int) -> None:
    answer = http.get(path, headers=_bearer(key))
    assert answer.status_code == status, answer.text
    if status == 403:
        assert "role" in answer.json()["error"]["message"]


def test_two_authorization_headers_are_none(http: httpx.Client) -> None:
    headers = [("authorization", f"Bearer {USER}"), ("authorization", "Bearer x")]
    assert http.get("/v1/models", headers=headers).status_code == 401


def test_the_engine_learns_whose_request_it_is(http: httpx.Client, engine: ScriptedEngine) -> None:
    salts = []
    for key in (USER, ADMIN):
        assert http.post("/v1/completions", json=TEXT, headers=_bearer(key)).status_code == 200
        salts.append(engine.requests[-1].cache_salt)
    assert engine.requests[-2].tenant == "key:ann" and engine.requests[-2].weight == 2.5
    assert all(salts) and salts[0] != salts[1]


def test_a_request_may_narrow_what_it_shares(
    http: httpx.Client, engine: ScriptedEngine, security: Security
) -> None:
    salts = {}
    for key in (USER, ADMIN):
        for salt in (None, "a", "a", "b"):
            http.post("/v1/completions", json={**TEXT, "cache_salt": salt}, headers=_bearer(key))
            salts.setdefault((key, salt), set()).add(engine.requests[-1].cache_salt)
    assert all(len(found) == 1 for found in salts.values())
    assert len(set.union(*salts.values())) == 6


def test_prefixes_are_shared_on_purpose_alone(security: Security) -> None:
    engine = ScriptedEngine()
    shared = Security(keys=security.keys, share_prefix_cache=True)
    with serving(fake_context(engine), shared) as url:
        httpx.post(f"{url}/v1/completions", json=TEXT, headers=_bearer(USER))
    assert engine.requests[-1].cache_salt == ""


def test_addresses_stand_for_clients_where_there_are_no_keys() -> None:
    names = ("10.0.0.1", "::ffff:10.0.0.1", "2001:db8::1", "2001:db8::2:0:0:9", "::1", "")
    ids = [by_address(name, Role.ADMIN).client_id for name in names]
    assert ids[0] == ids[1] == "addr:10.0.0.1"
    assert ids[2] == ids[3] == "addr:2001:db8::/64"
    assert ids[4:] == ["addr:::1", "addr:local"]
    mine, yours = by_address("a", None), by_address("b", None)
    assert mine.salt_for(None) == "" and mine.salt_for("x") == yours.salt_for("x") != ""


# -- CORS and host names ----------------------------------------------------------------------


def test_cors(http: httpx.Client) -> None:
    asks = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    good = http.options("/v1/completions", headers={"origin": "https://app.example", **asks})
    assert good.status_code == 200
    assert good.headers["access-control-allow-origin"] == "https://app.example"
    bad = http.options("/v1/completions", headers={"origin": "https://evil.example", **asks})
    assert "access-control-allow-origin" not in bad.headers
    refused = http.get("/v1/models", headers={"origin": "https://app.example"})
    assert refused.status_code == 401 and "access-control-allow-origin" in refused.headers


def test_an_allowed_origin_may_send_what_it_asks_for(http: httpx.Client) -> None:
    named = "authorization, x-stainless-lang, openai-organization, openai-beta, x-request-timeout"
    asks = {
        "access-control-request-method": "POST",
        "access-control-request-headers": named,
        "access-control-request-private-network": "true",
    }
    good = http.options("/v1/completions", headers={"origin": "https://app.example", **asks})
    assert good.status_code == 200, good.text
    assert good.headers["access-control-allow-private-network"] == "true"
    allowed = {h.strip() for h in good.headers["access-control-allow-headers"].lower().split(",")}
    assert allowed >= {h.strip() for h in named.split(",")} or "*" in allowed
    bad = http.options("/v1/completions", headers={"origin": "https://evil.example", **asks})
    assert "access-control-allow-origin" not in bad.headers and bad.status_code == 400


def test_cors_is_closed_by_default() -> None:
    with serving(fake_context(ScriptedEngine())) as url:
        answer = httpx.get(f"{url}/v1/models", headers={"origin": "https://app.example"})
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(
            ("127.0.0.1:80", 200),
            ("[::1]:80", 200),
            ("localhost", 200),
            ("x", 200),
            ("host.docker.internal:80", 200),
        ),
        *(("evil.example", 403), ("evil.example:8000", 403), ("Known.Example:1", 200)),
    ],
)
def test_names_of_others_are_refused_without_a_key(host: str, status: int) -> None:
    with serving(fake_context(ScriptedEngine()), Security(own_hosts=("known.example",))) as url:
        assert httpx.get(f"{url}/v1/models", headers={"host": host}).status_code == status


def test_forwarded_addresses_are_believed_of_trusted_proxies_alone() -> None:
    for trusted, tenant in (((), "addr:127.0.0.1"), (("127.0.0.1",), "addr:203.0.113.9")):
        engine = ScriptedEngine()
        with serving(fake_context(engine), Security(trusted_proxies=trusted)) as url:
            headers = {"x-forwarded-for": "203.0.113.9"}
            httpx.post(f"{url}/v1/completions", json=TEXT, headers=headers)
        assert engine.requests[-1].tenant == tenant


# -- files of keys ----------------------------------------------------------------------------


BAD_FILES = [
    ([{"name": "a"}], "either key or sha256"),
    ([{"name": "a", "key": ADMIN, "sha256": "0" * 64}], "either key or sha256"),
    ([{"name": "a", "sha256": "12"}], "64 hexadecimal"),
    ([{"name": "a b", "key": ADMIN}], "name"),
    ([{"name": "a", "key": "with space"}], "without spaces"),
    ([{"name": "a", "key": ""}], "keys[0].key"),
    ([{"name": "a", "key": ADMIN, "weight": 0}], "weight"),
    ([{"name": "a", "key": ADMIN, "role": "king"}], "role"),
    ([{"name": "a", "key": ADMIN, "rôle": "user"}], "unknown field"),
    ([{"name": "a", "key": ADMIN}, {"name": "a", "key": USER}], "two API keys have the name"),
    ([{"name": "a", "key": ADMIN}, {"name": "b", "key": ADMIN}], "are the same"),
]


@pytest.mark.parametrize(("entries", "message"), BAD_FILES)
def test_bad_key_files(tmp_path: Path, entries: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(TidemillError, match=re.escape(message)) as caught:
        StaticKeys((), _key_file(tmp_path, entries))
    assert ADMIN not in str(caught.value)


def test_toml_and_notes(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    written = f'[[keys]]\nname = "a"\nkey = "{ADMIN}"\nrole = "admin"\nweight = 3\n'
    path.write_text(written, encoding="utf-8-sig")  # as editors on Windows write it
    path.chmod(0o644)
    keys, notes = read_keys(path)
    assert keys[0].role is Role.ADMIN and keys[0].weight == 3
    assert "chmod 600" in notes[0]
    path.write_text(f"[[keys]\nname = {ADMIN}")
    with pytest.raises(TidemillError, match="syntax error") as caught:
        read_keys(path)
    assert ADMIN not in describe_exception(caught.value)


def test_what_is_no_file_is_said_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)  # opening one waits for whoever writes to it
    for path in (pipe, tmp_path, Path("/dev/zero")):
        with pytest.raises(TidemillError, match=r"no regular file|directory"):
            read_keys(path)
    with pytest.raises(TidemillError, match=r"--tls-cert .* no regular file"):
        Certificates(pipe, None, None)


def test_a_bad_file_keeps_the_old_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = _key_file(tmp_path, [{"name": "a", "key": ADMIN}])
    security = Security(keys=StaticKeys((), path))
    with serving(fake_context(ScriptedEngine()), security) as url:

        def status(key: str) -> int:
            return httpx.get(f"{url}/v1/models", headers=_bearer(key)).status_code

        assert (status(ADMIN), status(USER)) == (200, 401)
        path.write_text("{")
        asyncio.run(security.reload())
        assert (status(ADMIN), status(USER)) == (200, 401)
        assert "stay as they were" in caplog.text
        _key_file(tmp_path, [{"name": "b", "key": USER}])
        asyncio.run(security.reload())
        assert (status(ADMIN), status(USER)) == (401, 200)
    assert ADMIN not in caplog.text and USER not in caplog.text


# -- certificates -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pki(tmp_path_factory.mktemp("pki"))


def _trusting(pki: Path, client: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(pki / "ca.pem"))
    if client:
        context.load_cert_chain(pki / f"{client}.pem", pki / f"{client}.key")
    return context


def test_tls(pki: Path) -> None:
    certificates = Certificates(pki / "server.pem", pki / "server.key", None)
    with serving(fake_context(ScriptedEngine()), Security(certificates=certificates)) as url:
        url = url.replace("127.0.0.1", "localhost")
        assert httpx.get(f"{url}/v1/models", verify=_trusting(pki)).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(url.replace("https", "http") + "/healthz")
        certificates.reload()
        assert httpx.get(f"{url}/healthz", verify=_trusting(pki)).status_code == 200


def test_mtls(pki: Path) -> None:
    certificates = Certificates(pki / "server.pem", pki / "server.key", pki / "ca.pem")
    with serving(fake_context(ScriptedEngine()), Security(certificates=certificates)) as url:
        url = url.replace("127.0.0.1", "localhost") + "/healthz"
        assert httpx.get(url, verify=_trusting(pki, "client")).status_code == 200
        for client in (None, "stranger"):
            with pytest.raises(httpx.TransportError):
                httpx.get(url, verify=_trusting(pki, client))


@pytest.mark.parametrize(
    ("cert", "key", "authority", "param", "message"),
    [
        ("none.pem", "server.key", None, "tls-cert", "cannot be read"),
        ("server.pem", "none.key", None, "tls-key", "cannot be read"),
        ("server.key", "server.key", None, "tls-cert", "no PEM certificate"),
        ("server.pem", None, None, "tls-key", "no PEM private key"),
        ("server.pem", "client.key", None, "tls-key", "is not the private key"),
        ("server.pem", "server.locked", None, "tls-key", "has a password"),
        ("server.pem", "server.key", "server.key", "tls-client-ca", "no PEM certificate"),
    ],
)
def test_bad_certificates(
    pki: Path, cert: str, key: str | None, authority: str | None, param: str, message: str
) -> None:
    with pytest.raises(TidemillError, match=message) as caught:
        Certificates(pki / cert, pki / key if key else None, pki / authority if authority else None)
    assert caught.value.param == param


# -- where a server may listen ----------------------------------------------------------------


def _flags(**changes: Any) -> SecuritySettings:
    values: dict[str, Any] = dict.fromkeys(
        ("api_keys", "tls_cert", "tls_key", "tls_client_ca", "region", "oidc_issuer")
    )
    values |= dict.fromkeys(("api_key", "cors_origin", "allowed_host", "trusted_proxy"), ())
    values |= dict.fromkeys(("oidc_audience", "oidc_role_claim", "oidc_team_claim"), "")
    switches = dict.fromkeys(("require_keys", "share_prefix_cache", "insecure"), False)
    return SecuritySettings(**{**values, **switches, **changes})


def test_only_locked_servers_listen_beyond_this_machine() -> None:
    def quiet(line: str) -> None:
        assert ADMIN not in line

    for host in ("0.0.0.0", "::"):
        with pytest.raises(TidemillError, match="--insecure") as caught:
            _flags().open(host, quiet)
        assert caught.value.param == "host" and "--api-key" in caught.value.message
        assert _flags(insecure=True).open(host, quiet).own_hosts is None
        assert _flags(api_key=[ADMIN]).open(host, quiet).keys.closed
    for host in ("127.0.0.1", "::1", "localhost"):
        assert host in (_flags().open(host, quiet).own_hosts or ())
    for changes in (
        {"cors_origin": ["app.example"]},
        {"trusted_proxy": ["proxy.example"]},
        {"tls_key": Path("x")},
        {"api_key": ["ä"]},
    ):
        with pytest.raises(TidemillError):
            _flags(**changes).open("127.0.0.1", quiet)


# -- logs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["text", "json"])
def test_logs_hold_no_secrets(
    security: Security,
    form: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = "velvet-hammer"
    root = logging.getLogger("tidemill")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "propagate", True)
    set_up_logging("api", "debug", form)
    engine = ScriptedEngine(lambda request, choice: [*b"iron-curtain", 257])
    context = fake_context(engine)
    chat = {"messages": [{"role": "user", "content": secret}]}
    with serving(context, security) as url, httpx.Client(base_url=url) as http:
        headers = _bearer(USER)
        for stream in (False, True):
            body = {"prompt": secret, "stream": stream}
            assert http.post("/v1/completions", json=body, headers=headers).status_code == 200
        http.get(f"/v1/models/{secret}?key={secret}", headers=headers)
        http.get(f"/{secret}", headers={**headers, "cookie": secret})
        http.get("/v1/models", headers=_bearer(secret))
        http.post("/v1/completions", content=secret, headers=headers)
        http.post("/v1/completions", json={"prompt": secret, secret: secret}, headers=headers)

        def fail(*args: Any, **kwargs: Any) -> None:
            try:
                raise ValueError(f"cannot read {secret!r} of {ADMIN}")
            except ValueError as error:
                raise RuntimeError(secret) from error

        monkeypatch.setattr(engine, "submit", fail)
        assert http.post("/v1/completions", json=TEXT, headers=headers).status_code == 500
        monkeypatch.setattr(context.host.models[0].template, "render", fail, raising=False)
        http.post("/v1/chat/completions", json=chat, headers=headers)
    text = capsys.readouterr().err
    assert text.count("/v1/completions") >= 4 and "ann" in text
    assert "RuntimeError" in text and "ValueError" in text and "which led to" in text
    for word in (secret, "iron-curtain", USER, ADMIN):
        assert word not in text, word
    if form == "json":
        events = [json.loads(line) for line in text.splitlines()]
        one = next(e for e in events if e.get("event") == "request" and e["status"] == 200)
        assert one["route"] == "/v1/completions" and one["client"] == "ann"
        assert one["completion_tokens"] and one["request_id"] and one["seconds"] > 0


def test_a_rejected_request_is_logged_with_its_route_and_field(
    security: Security, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logging("api", "info", "json")
    headers, chat = _bearer(USER), "/v1/chat/completions"
    asked = {"messages": [{"role": "user", "content": "hi"}]}
    secret = "ssn-123"
    cases: list[tuple[str, dict[str, Any], dict[str, str], tuple[Any, ...]]] = [
        (chat, {**asked, "temperature": 101}, headers, (400, "invalid_value", "temperature")),
        (chat, {**asked, secret: 1}, headers, (400, "unknown_parameter", "?")),
        (chat, {**asked, "stream_options": {"include_usage": True}}, headers,
         (400, "invalid_value", "stream_options.include_usage")),
        (chat, {"messages": [{"role": "user"}]}, headers,
         (400, "invalid_value", "messages[0].content")),
        (chat, asked, _bearer(secret), (401, "invalid_api_key", None)),
        (f"/v1/models/{secret}", {}, headers, (405, "method_not_allowed", None)),
    ]  # fmt: skip
    with (
        serving(fake_context(ScriptedEngine()), security) as url,
        httpx.Client(base_url=url) as http,
    ):
        for path, body, sent, _ in cases:
            http.post(path, json=body, headers=sent)
        http.post(f"/{secret}", headers=headers)
    text = capsys.readouterr().err
    assert secret not in text
    events = [json.loads(line) for line in text.splitlines()]
    events = [e for e in events if e.get("event") == "request"]
    # A line is written after its response, so the next request's may come first.
    logged = sorted((e["route"], e["status"], e["error"], e.get("param") or "") for e in events)
    routes = [*[chat] * 5, "/v1/models/{model:path}"]
    expected = [
        (route, status, code, param or "")
        for route, (*_, (status, code, param)) in zip(routes, cases, strict=True)
    ]
    assert logged == sorted([*expected, ("unknown route", 404, "not_found", "")])
    [stranger] = [e for e in events if e["status"] == 401]
    assert stranger["client"] == "127.0.0.1", "of whom no key is known, the address"
    assert "401 in" in stranger["message"] and ": invalid_api_key (" in stranger["message"]


def test_our_own_words_are_logged_unless_they_are_about_a_request() -> None:
    said = {kind: describe_exception(TidemillError(kind, "some words")) for kind in ErrorKind}
    quoting = {kind for kind, text in said.items() if "some words" not in text}
    assert quoting == {ErrorKind.BAD_REQUEST, ErrorKind.UNSUPPORTED, ErrorKind.NOT_FOUND}
    assert (
        summary(KeyError("some words")) == "KeyError (its message of 12 characters is not logged)"
    )


def test_no_pickle_and_private_sockets() -> None:
    source = Path(__file__).parents[3] / "src" / "tidemill"
    word = re.compile(
        r"^\s*(?:import|from)\s+(?:pickle|marshal|shelve|dill|joblib|cloudpickle)\b", re.M
    )
    files = list(source.rglob("*.py"))
    assert len(files) > 100
    assert not [path for path in files if word.search(path.read_text())]


def test_a_key_file_without_keys_admits_nobody(tmp_path: Path) -> None:
    empty = Security(keys=StaticKeys((), _key_file(tmp_path, [])))
    with (
        serving(fake_context(ScriptedEngine()), empty) as url,
        httpx.Client(base_url=url) as client,
    ):
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers=_bearer(ADMIN)).status_code == 401
