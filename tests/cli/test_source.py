"""What a running server serves follows its deployment file and the library."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tidemill.base.errors import TidemillError
from tidemill.cli.deployments import CHECKS
from tidemill.cli.serving import named_models
from tidemill.cli.source import DeployedModels
from tidemill.contract.config import EngineConfig
from tidemill.contract.needs import MemoryNeeds
from tidemill.deployment.problems import Origin
from tidemill.deployment.reading import Sourced
from tidemill.deployment.resolve import DeploymentInputs
from tidemill.library.catalog import Library
from tidemill.library.create import create
from tidemill.library.definition.recipe import Recipe
from tidemill.library.manifest import Definition
from tidemill.loading.locate import bundled_models
from tidemill.server.host import needs
from tidemill.server.host.rollout.traffic import Single
from tidemill.worker.needs import memory_needs

FILE = """
[server]
memory = "4GiB"
[[models]]
name = "brook"
[[models]]
name = "other"
source = "brook"
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    return tmp_path


def _create(name: str, system: str = "Be brief.") -> None:
    definition = msgspec.structs.replace(Definition(), system=system)
    create(name, Recipe(base="brook", definition=definition), Library.open())


def _served(*names: str, file: Path | None = None, whole: bool = False) -> DeployedModels:
    origin = Origin("flag", "command line")
    models = tuple(Sourced(name, origin) for name in names)
    inputs = DeploymentInputs(file=file, models=models, checks=CHECKS)
    return DeployedModels(inputs, inputs.resolve(), whole=whole, say=lambda line: None)


def test_the_whole_library_is_served_as_it_comes_and_goes() -> None:
    source = _served("brook", whole=True)
    assert source.look() is None and not source.watched, "there is no library yet"
    _create("pirate")
    found = source.look()
    assert found is not None and [one.name for one in found.added] == ["pirate"]
    assert source.watched
    assert source.look() is None
    _create("pirate", system="Be loud.")
    found = source.look()
    assert found is not None and [one.name for one in found.replaced] == ["pirate"]
    assert found.added == () == found.removed
    assert found.replaced[0].locate().load_text().preset.system == "Be loud."
    Library.open().remove("pirate")
    found = source.look()
    assert found is not None and found.removed == ("pirate",) and found.added == ()
    assert source.reload().document == {}, "a reload finds nothing that look has not"


def test_a_model_whose_files_are_gone_is_left_out_and_the_others_are_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = tmp_path / "gone"
    shutil.copytree(bundled_models()["brook"], gone)
    create("stale", Recipe(base=str(gone)), Library.open())
    _create("fresh")
    said: list[str] = []
    assert named_models((), None, alone=False, say=said.append) == ("brook", "fresh", "stale")
    source = _served("brook", "fresh", "stale", whole=True)
    gone.rename(tmp_path / "elsewhere")
    assert named_models((), None, alone=False, say=said.append) == ("brook", "fresh")
    [line] = said
    assert "not served: stale: its file" in line and "is gone; create it again" in line
    assert _served("brook", "fresh", whole=True).reload().document == {}
    _create("later")
    found = source.look()
    assert found is not None and found.removed == ("stale",)
    assert [one.name for one in found.added] == ["later"] and source.reload().document == {}
    assert caplog.text.count("not served: stale") == 1


def test_of_listed_models_only_what_was_pulled_through_the_server_is_added() -> None:
    _create("mine")
    source = _served("mine")
    assert source.watched and not _served("brook").watched
    _create("stranger")
    found = source.look()
    assert found is None or found.added == ()
    assert [one.name for one in source.adopt("stranger").added] == ["stranger"]
    assert source.adopt("stranger").added == () == source.adopt("mine").added
    _create("mine", system="Be loud.")
    found = source.look()
    assert found is not None and [one.name for one in found.replaced] == ["mine"]
    assert source.reload().document == {}
    Library.open().remove("stranger")
    found = source.look()
    assert found is not None and found.removed == ("stranger",)


Edit = Callable[[str], str]


def test_a_reload_says_what_becomes_of_each_model(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text(FILE)
    source = _served(file=file)
    assert source.reload().document == {} and source.reloadable
    changed = FILE.replace("4GiB", "5GiB").replace('name = "other"', 'name = "third"')
    file.write_text(changed + 'system = "Be brief."\n')
    found = source.reload()
    assert [one.name for one in found.models.added] == ["third"]
    assert found.models.removed == ("other",) and found.order == ("brook", "third")
    assert found.memory == 5 * 2**30
    found.commit()
    file.write_text(changed + 'system = "Be loud."\naliases = ["x"]\n')
    found = source.reload()
    assert [one.name for one in found.models.updated] == ["third"] and found.models.added == ()
    assert found.models.texts == {"third"} and found.models.updated[0].aliases == ("x",)
    file.write_text(changed + 'system = "Be brief."\nthreads = 1\n')
    assert [one.name for one in source.reload().models.replaced] == ["third"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('[server]\nport = 9\nmemory = "4GiB"', "restart the server"),
        ("[server]\nport = true", "must be"),
        ("[[", "t.toml"),
        ('[server]\nmemory = "20MiB"', "needs at least"),
        ("[defaults]\nmax_model_len = 999999", "models.0.*exceeds the .* positions"),
    ],
)
def test_a_reload_is_refused_whole(tmp_path: Path, wrong: str, said: str) -> None:
    file = tmp_path / "t.toml"
    file.write_text(FILE)
    source = _served(file=file)
    file.write_text(wrong + '\n[[models]]\nname = "brook"\n')
    with pytest.raises(TidemillError, match=said):
        source.reload()
    file.write_text(FILE)
    assert source.reload().document == {}


def test_a_reload_counts_pinned_models_and_reads_nothing_where_no_engine_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "t.toml"
    text = FILE.replace("4GiB", "300MiB")
    file.write_text(text)
    source = _served(file=file)
    read: list[str] = []

    def counted(config: EngineConfig) -> MemoryNeeds:
        read.append(config.served_name)
        return memory_needs(config)

    monkeypatch.setattr(needs, "read_needs", counted)
    file.write_text(text.replace('name = "other"', 'name = "other"\npin = true'))
    least = memory_needs(EngineConfig(model=str(bundled_models()["brook"]), served_name="x"))
    room = least.total(0, sequences=1) * 3 // 2
    assert source.reload().models.updated and read == ["other"]
    file.write_text(text.replace("name =", "pin = true\nname =").replace("300MiB", str(room)))
    with pytest.raises(TidemillError, match=r"t.toml:3:10: server.memory: pinned models need"):
        source.reload()
    read.clear()
    file.write_text(text.replace('name = "other"', 'name = "other"\nsystem = "Be brief."'))
    assert source.reload().models.texts == {"other"} and read == []


def test_a_reload_changes_the_traffic_of_names_with_versions(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    text = (
        '[[models]]\nname = "chat"\ntraffic = "1"\n'
        '[[models.versions]]\nversion = "1"\nsource = "brook"\n'
        '[[models.versions]]\nversion = "2"\nsource = "brook"\n'
    )
    file.write_text(text)
    source = _served(file=file)
    file.write_text(text.replace('traffic = "1"', 'traffic = "2"'))
    found = source.reload()
    assert [(n.name, n.versions, n.traffic) for n in found.names] == [
        ("chat", ("1", "2"), Single(version="2"))
    ]
    # What answers to the name alone is loaded at the start.
    assert found.order == ("chat@2", "chat@1") and source.reload().order[0] == "chat@2"
    models = found.models
    assert not models.added + models.replaced + models.updated and not models.texts
