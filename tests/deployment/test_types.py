"""Every key takes values of its type alone; any other is a problem at the value's place."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest

from tidemill.deployment.request_settings import limit_settings, sampling_settings
from tidemill.deployment.settings import (
    ADMISSION,
    MODEL,
    PIPELINE,
    SECURITY,
    SERVER,
    UPSTREAM,
    Setting,
)

# A value of each type, and what it is.
_VALUES = {
    "64": {"whole", "number", "size", "duration"},
    "0.5": {"number", "duration"},
    "true": {"switch"},
    '"velvet"': {"text"},
    '"64MiB"': {"text", "size"},
    '"64s"': {"text", "duration"},
    '""': set(),
    "[64]": set(),
    "[[2]]": set(),
    "{ velvet = 64 }": {"table"},
    "2020-02-02": set(),
    "nan": set(),
}
_TABLES: dict[str, tuple[str, Sequence[Setting]]] = {
    "server": ("[server]\n", SERVER),
    "admission": ("[admission]\n", ADMISSION),
    "security": ("[security]\n", SECURITY),
    "limits": ("[limits]\n", limit_settings()),
    "defaults.sampling": ("[defaults.sampling]\n", sampling_settings()),
    "models[0]": ("[[models]]\n", MODEL),
    "upstream": ("[upstream]\n", UPSTREAM),
    "pipelines[0]": ("[[pipelines]]\n", PIPELINE),
}
# Keys that take some texts; of two that are the same here, only one.
_CHECKED = (
    *("api_keys", "tls_cert", "tls_key", "tls_client_ca", "file", "isa", "cors_origin"),
    *("trusted_proxy", "host", "aliases", "database", "oidc_issuer", "adapters", "otel"),
    *("adapter_folder", "kv_listen", "kv_peers", "pipeline_peers"),
    *("energy", "carbon_intensity"),
)

# Kinds that take some numbers of their type.
_RANGES = ("a whole number", "a number", "one of 16")


def _types(setting: Setting) -> set[str]:
    """The types that a key takes, from its description."""
    what = setting.kind.what
    for start, types in (
        ("a whole number", {"whole"}),
        ("a number of seconds, a duration", {"duration"}),
        ("a number", {"number"}),
        ("true or false", {"switch"}),
        ("a size", {"size"}),
        ("a table", {"table"}),
        ("a list of tables", set()),
        ("one of 16, 32, 64", {"whole"}),
        ("one of", set()),
    ):
        if what.startswith(start):
            return types
    return {"text"}


@pytest.mark.parametrize("value", _VALUES)
@pytest.mark.parametrize("table", _TABLES)
def test_every_key_takes_its_type_alone(
    problems: Callable[..., list[str]], table: str, value: str
) -> None:
    header, settings = _TABLES[table]
    text = header + "".join(f"{setting.key} = {value}\n" for setting in settings)
    found = {}
    # A key that does not exist keeps checks of the whole from running.
    for problem in problems(f"{text}no_such_key = 1\n"):
        place, key, _ = problem.split(": ", 2)
        found[re.sub(r"\[\d\]$", "", key.removeprefix(f"{table}."))] = place
    assert found.pop("no_such_key").startswith(f"t.toml:{len(settings) + 2}:1")
    for line, setting in enumerate(settings, 2):
        place = found.pop(setting.key, None)
        if not _types(setting) & _VALUES[value]:
            inside = setting.kind.several and value.startswith("[")  # of a list: its element
            assert place == f"t.toml:{line}:{len(setting.key) + 4 + inside}", setting.key
        elif setting.key not in _CHECKED and not setting.kind.what.startswith(_RANGES):
            assert place is None, setting.key
    assert found.keys() <= {"models[0]", "pipelines[0]"}
