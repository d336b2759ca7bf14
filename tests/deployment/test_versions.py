"""Versions of a name, and the rule of its traffic."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidemill.deployment.deployment import Deployment

Deploy = Callable[..., Deployment]
Problems = Callable[..., list[str]]

TWO = """\
[[models]]
name = "chat"
aliases = ["gpt"]
source = "./model.gguf"
threads = 3
[models.sampling]
top_p = 0.5
[[models.versions]]
version = "1"
[[models.versions]]
version = "2"
source = "owner/other"
threads = 4
[models.versions.sampling]
top_p = 0.9
"""


def test_versions_inherit_from_their_name(deploy: Deploy) -> None:
    found = deploy(TWO)
    one, two = found.models
    assert (one.name, one.of, one.engine["threads"], one.sampling) == (
        *("chat@1", "chat", 3),
        {"top_p": 0.5},
    )
    assert (two.name, two.of, two.engine["threads"], two.sampling) == (
        *("chat@2", "chat", 4),
        {"top_p": 0.9},
    )
    assert one.source.endswith("/model.gguf") and two.source == "owner/other"
    assert not one.aliases and not two.aliases
    [name] = found.names
    assert (name.name, name.aliases, name.versions) == ("chat", ("gpt",), ("1", "2"))
    assert name.traffic.__class__.__name__ == "Single" and name.traffic.version == "1"  # type: ignore[union-attr]
    assert found.served_names == ("chat", "gpt", "chat@1", "chat@2")


def test_rules_of_traffic(deploy: Deploy) -> None:
    text = TWO.replace("[[models.versions]]", "traffic = '2'\n[[models.versions]]", 1)
    [name] = deploy(text.replace("traffic = '2'\n", "").replace("threads = 3", "traffic='2'")).names
    assert name.traffic.version == "2"  # type: ignore[union-attr]
    rule = '[models.traffic]\nkind = "canary"\nstable = "1"\ncanary = "2"\nsteps = [5, 50]\n'
    [name] = deploy(TWO.replace("[models.sampling]", f"{rule}[models.sampling]")).names
    assert name.traffic.steps == (5.0, 50.0)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("traffic", "message"),
    [
        ("traffic = '3'", "t.toml:5:11: models[0].traffic: names the version '3'; there are 1, 2"),
        ("traffic = '!'", "t.toml:5:11: models[0].traffic"),
        ("traffic = 2", "t.toml:5:11: models[0].traffic"),
        (
            "traffic = {kind = 'canary', stable = '1', canary = '2', steps = [5, 3]}",
            "t.toml:5:69: models[0].traffic.steps[1]: is 3; steps are percentages that rise",
        ),
        ("traffic = {kind = 'weights', weights = {1 = -1}}", "models[0].traffic.weights.1: is a"),
        ("traffic = {kind = 'odd'}", "t.toml:5:19: models[0].traffic.kind: "),
        ("traffic = {kind = 'single', version = '1', x = 1}", "t.toml:5:11: models[0].traffic: "),
    ],
)
def test_problems_of_traffic(problems: Problems, traffic: str, message: str) -> None:
    [found] = problems(TWO.replace("threads = 3", traffic))
    assert message in found


def test_problems_of_versions(problems: Problems) -> None:
    assert problems(
        '[[models]]\nname = "a"\ntraffic = "1"\n'
        '[[models]]\nsource = "b/c"\n[[models.versions]]\nversion = "1"\n'
        '[[models]]\nname = "d"\n[[models.versions]]\n[[models.versions]]\nversion = "1"\n'
        '[[models.versions]]\nversion = "1"\n[[models.versions]]\nversion = "a b"\nname = "x"\n'
        '[[models]]\nname = "d@1"\n'
    ) == [
        "t.toml:3:1: models[0].traffic: is for a name with versions; add [[models.versions]]",
        "t.toml:4:3: models[1]: has versions and no name; name is what clients use",
        't.toml:10:10: models[2].versions[0]: has no version, such as version = "2"',
        "t.toml:14:11: models[2].versions[2].version: '1' is at t.toml:12:11 too; change one",
        "t.toml:16:11: models[2].versions[3].version: must be 1 to 64 letters, digits, '.', '_' or "
        "'-', got \"a b\"",
        "t.toml:17:1: models[2].versions[3].name: is no key here; name belongs in [[models]]",
        "t.toml:19:8: models[3].name: 'd@1' is a name of models[2].versions[1] (t.toml:12:11) too; "
        "rename one",
    ]
