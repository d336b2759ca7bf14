"""The table of settings agrees with the types that use it and with the flags of `serve`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from tidemill.cli.declared import command
from tidemill.cli.serve import serve
from tidemill.contract.config import EngineConfig
from tidemill.contract.sampling import NEUTRAL, SamplingParams
from tidemill.deployment.deployment import ModelSettings, PipelineSettings, ServerSettings
from tidemill.deployment.kinds import FOREVER
from tidemill.deployment.reading import default_of
from tidemill.deployment.request_settings import limit_settings, sampling_settings
from tidemill.deployment.security import SecuritySettings
from tidemill.deployment.settings import (
    ADMISSION,
    ENGINE_KEYS,
    MODEL,
    PIPELINE,
    SECURITY,
    SERVER,
    keyed,
)
from tidemill.server.access.limits import Limits
from tidemill.server.admission.options import AdmissionOptions

# Fields of EngineConfig that the server sets, and no one else.
_INTERNAL = {"model", "served_name", "kv_reserve", "recurrent_sequences", "recurrent_snapshots",
             "recurrent_drafts"}  # fmt: skip
# Flags that are no setting: the model, its names, bounds as NAME=VALUE, and help.
_OTHER_FLAGS = {
    "adapter",
    "adapter_folder",
    "model",
    "models",
    "served_name",
    "limit",
    "config",
    "pin",
}


def test_every_field_has_a_row_and_every_row_a_field() -> None:
    for settings, kind in ((SERVER, ServerSettings), (SECURITY, SecuritySettings)):
        assert [s.key for s in settings] == [field.name for field in msgspec.structs.fields(kind)]
    pipeline = {field.name for field in msgspec.structs.fields(PipelineSettings)}
    assert keyed(PIPELINE).keys() | {"file_digest"} == pipeline
    engine = {field.name for field in msgspec.structs.fields(EngineConfig)}
    assert {*ENGINE_KEYS} == engine - _INTERNAL
    model = {field.name for field in msgspec.structs.fields(ModelSettings)}
    own = {"sampling", "engine", "of", "template_digest", "stated"}
    assert keyed(MODEL).keys() - {*ENGINE_KEYS} == model - own
    assert [s.key for s in limit_settings()] == [f.name for f in dataclasses.fields(Limits)]
    sampling = {field.name for field in msgspec.structs.fields(SamplingParams)}
    assert {*NEUTRAL} < {s.key for s in sampling_settings()} < sampling


def test_defaults_are_those_of_the_types() -> None:
    config = EngineConfig(model="m", served_name="m")
    for setting in MODEL:
        if setting.key in ENGINE_KEYS:
            assert default_of(setting) == getattr(config, setting.key), setting.key
    assert Limits(**{s.key: default_of(s) for s in limit_settings()}) == Limits()
    given = {s.key: default_of(s) for s in ADMISSION}
    assert AdmissionOptions.of(**given) == AdmissionOptions()


def test_presets_are_sampling_parameters() -> None:
    for value in (1, 0.5, "\n", ["a", "b"]):
        for setting in sampling_settings():
            try:
                found = setting.kind.read(value, Path("/"))
            except ValueError:
                continue
            SamplingParams(**{setting.key: found})
    stop = keyed(sampling_settings())["stop"].kind
    for wrong in ("", ["a"] * 2, [""], [*map(str, range(17))], "x" * 1025):
        with pytest.raises(ValueError):
            stop.read(wrong, Path("/"))


def test_every_flag_of_serve_is_a_row_of_the_table() -> None:
    flags = {p.name: p for p in command("serve", serve).params}
    rows = {s.key: s for table in (SERVER, ADMISSION, SECURITY, MODEL) for s in table if s.flag}
    waiting = {"memory", "keep_alive"}  # flags of a server of many models
    assert rows.keys() - waiting == flags.keys() - _OTHER_FLAGS - waiting
    for name, row in rows.items():
        if name in flags:
            assert flags[name].opts[0] == row.flag_name, name
            assert flags[name].envvar == row.envvar, name


@pytest.mark.parametrize("setting", [*SERVER, *ADMISSION, *SECURITY, *MODEL, *PIPELINE])
def test_rows_explain_themselves(setting: object) -> None:
    from tidemill.deployment.settings import Setting

    assert isinstance(setting, Setting)
    assert setting.help.endswith(".") and setting.kind.what
    default_of(setting)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("1h30m", 5400), ("5m", 300), ("1m500ms", 60.5), ("0", 0), (" 2.5 ", 2.5),
     ("forever", FOREVER), ("-1", FOREVER), (-3, FOREVER), (7, 7), ("1.5s", 1.5)],
)  # fmt: skip
def test_durations(text: str | int, seconds: float) -> None:
    assert keyed(SERVER)["keep_alive"].kind.read(text, Path("/")) == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "5 m", "m", "1x", "nan", "inf", "1m1h", True, [], "1e99"]
)
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError):
        keyed(SERVER)["keep_alive"].kind.read(text, Path("/"))
