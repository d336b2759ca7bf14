"""What a new deployment changes in a running one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.deployment_files import GOOD, VERSIONS

from tidemill.base.errors import TidemillError
from tidemill.deployment.deployment import Deployment
from tidemill.deployment.difference import difference

Deploy = Callable[..., Deployment]


def test_equal_deployments_differ_in_nothing(deploy: Deploy) -> None:
    found = difference(deploy(GOOD + VERSIONS), deploy("# moved\n\n" + GOOD + VERSIONS))
    assert not found and found.lines() == []
    found.check()


@pytest.mark.parametrize(
    ("before", "after", "lists"),
    [
        ("threads = 4", "threads = 5", {"models_restarted": ("chat",)}),
        ("threads = 2", "threads = 1", {"models_restarted": ("owner/name:Q4_K_M", "v@1", "v@2")}),
        ('system = "You are brief."', "", {"models_updated": ("chat",)}),
        ("top_p = 0.9", "top_p = 0.8", {"models_updated": ("chat",)}),
        ('["gpt-4o-mini"]', '["gpt-5"]', {"models_updated": ("chat",)}),
        ('"5m"', '"6m"', {"models_updated": ("chat", "v@1", "v@2"),
                            "server": ("keep_alive",)}),
        ('"24GiB"', '"25GiB"', {"server": ("memory",)}),
        ("count = 3", "count = 4", {"pipelines_restarted": ("answers",)}),
        ('name = "chat"', 'name = "c"', {"models_added": ("c",), "models_removed": ("chat",)}),
        ("Q4_K_M", "Q8_0", {"models_added": ("owner/name:Q8_0",),
                            "models_removed": ("owner/name:Q4_K_M",)}),
        ("port = 9000", "port = 9001", {"rejected": ("port",)}),
        ("1_000_000", "1_000_001", {"rejected": ("max_body_bytes",)}),
        ("1500", "1501", {"rejected": ("ttft_objective_ms",)}),
        ('traffic = "1"', 'traffic = "2"', {"models_updated": ("v",)}),
        ("o/two", "o/three", {"models_restarted": ("v@2",)}),
        ('version = "2"', 'version = "3"', {"models_added": ("v@3",), "models_removed": ("v@2",)}),
        (VERSIONS, "", {"models_removed": ("v@1", "v@2"), "names_removed": ("v",)}),
        ('[[pipelines]]\nfile = "answers.py"\noptions = { folder = "texts", count = 3 }', "",
         {"pipelines_removed": ("answers",)}),
    ],
)  # fmt: skip
def test_each_change_is_in_its_lists_alone(
    deploy: Deploy, before: str, after: str, lists: dict[str, tuple[str, ...]]
) -> None:
    text = GOOD + VERSIONS
    assert text.count(before) == 1
    found = difference(deploy(text), deploy(text.replace(before, after)))
    assert found and found.lines()
    for name in found.__slots__:
        if name != "changes":
            listed = getattr(found, name)
            keys = tuple(one if isinstance(one, str) else one.key for one in listed)
            assert keys == lists.get(name, ()), name
    assert found.as_json().keys() - {"changes"} == lists.keys()
    if "rejected" in lists:
        [key] = lists["rejected"]
        with pytest.raises(TidemillError, match=rf"cannot change .*\.{key}: .*restart the server"):
            found.check()
    back = difference(deploy(text.replace(before, after)), deploy(text))
    assert len(back.changes) == len(found.changes)
    assert len(back.models_added) == len(found.models_removed)


def test_a_replaced_engine_takes_what_is_applied_in_place_with_it(deploy: Deploy) -> None:
    changed = GOOD.replace("threads = 4", "threads = 5").replace("brief", "long")
    found = difference(deploy(GOOD), deploy(changed))
    assert (found.models_restarted, found.models_updated) == (("chat",), ())
    assert len(found.changes) == 2


def test_a_model_that_becomes_a_name_with_versions(deploy: Deploy) -> None:
    plain = '[[models]]\nname = "v"\nsource = "o/one"\n'
    found = difference(deploy(plain), deploy(VERSIONS))
    assert (found.models_added, found.models_removed) == (("v@1", "v@2"), ("v",))
    assert found.names_added == ("v",) and not found.models_restarted


def test_changed_content_of_files(deploy: Deploy, folder: Path) -> None:
    before = deploy(GOOD)
    (folder / "template.jinja").write_text("{{ messages[0] }}")
    (folder / "answers.py").write_text("async def answer(request, models):\n    return 2\n")
    found = difference(before, deploy(GOOD))
    assert found.models_updated == ("chat",) and found.pipelines_restarted == ("answers",)
    assert [line.rpartition(".")[2] for line in map(str, found.changes)] == [
        "chat_template: content changed",
        "file: content changed",
    ]


def test_changes_hold_no_secrets(deploy: Deploy) -> None:
    text = "[security]\napi_key = 'velvet-hammer-1'\n[[models]]\nsource = 'https://u:velvet@h/a'"
    found = difference(deploy(text), deploy(text.replace("velvet", "iron-velvet")))
    assert [one.key for one in found.rejected] == ["api_key"]
    assert "velvet" not in "\n".join(map(str, found.changes))
    with pytest.raises(TidemillError) as caught:
        found.check()
    assert "velvet" not in caught.value.message
