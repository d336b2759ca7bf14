"""The manifest for KubeRay: its objects are whole, and Tidemill reads its file.

KubeRay's own schemas are in no registry: fields of its objects are held against the names that its
API documents, what is Kubernetes' own inside them against Kubernetes' schemas.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from helpers.linting import lint

from tidemill.cli.main import app_of
from tidemill.cluster.config import ClusterConfig, checked

yaml = pytest.importorskip("yaml")

FOLDER = Path(__file__).parents[2] / "deploy" / "kuberay"
_GROUP = {"rayStartParams", "template"}
KNOWN = {
    "RayCluster": {
        "rayVersion",
        "enableInTreeAutoscaling",
        "autoscalerOptions",
        "headGroupSpec",
        "workerGroupSpecs",
        "gcsFaultToleranceOptions",
    },
    "RayJob": {"entrypoint", "clusterSelector", "submissionMode", "shutdownAfterJobFinishes"},
    "head": _GROUP | {"serviceType", "headService"},
    "worker": _GROUP | {"groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts"},
    "autoscaler": {"upscalingMode", "idleTimeoutSeconds", "resources", "env"},
}


def _objects() -> dict[str, dict[str, Any]]:
    text = (FOLDER / "cluster.yaml").read_text()
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def _config() -> ClusterConfig:
    return checked(tomllib.loads(_objects()["ConfigMap"]["data"]["cluster.toml"]))


def _groups() -> dict[str, dict[str, Any]]:
    spec = _objects()["RayCluster"]["spec"]
    return {one["groupName"]: one for one in spec["workerGroupSpecs"]}


def test_fields_are_those_of_kuberays_api() -> None:
    objects = _objects()
    for kind in ("RayCluster", "RayJob"):
        assert objects[kind]["apiVersion"] == "ray.io/v1"
        assert objects[kind]["spec"].keys() <= KNOWN[kind]
    spec = objects["RayCluster"]["spec"]
    assert spec["headGroupSpec"].keys() <= KNOWN["head"]
    assert spec["autoscalerOptions"].keys() <= KNOWN["autoscaler"]
    for group in (spec["headGroupSpec"], *_groups().values()):
        assert group.keys() >= _GROUP
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    for group in _groups().values():
        assert group.keys() <= KNOWN["worker"]
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_what_is_kubernetes_own_is_valid() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    objects = _objects()
    spec = objects["RayCluster"]["spec"]
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, **one["template"]}
        for one in (spec["headGroupSpec"], *spec["workerGroupSpecs"])
    ]
    for one in (objects["ConfigMap"], objects["Service"], *pods):
        for version in ("1.30", "1.33", "1.37"):
            validate.validate(one, version, strict=True)


def test_its_parts_fit_each_other() -> None:
    objects, config, groups = _objects(), _config(), _groups()
    name = objects["RayCluster"]["metadata"]["name"]
    service = objects["Service"]["spec"]
    assert service["selector"] == {"ray.io/cluster": name, "ray.io/group": "gateways"}
    assert service["ports"][0]["targetPort"] == config.gateway.port
    assert objects["RayJob"]["spec"]["clusterSelector"] == {"ray.io/cluster": name}
    # A gateway in each pod of its group, and engines that fit the pods of theirs.
    assert groups["gateways"]["replicas"] == config.gateway.count
    assert config.gateway.resources == {"gateway": 1}
    assert '"gateway": 1' in groups["gateways"]["rayStartParams"]["resources"].replace("\\", "")
    [engine] = groups["engines"]["template"]["spec"]["containers"]
    assert config.models[0].cpus <= float(engine["resources"]["limits"]["cpu"])
    images = {
        container["image"]
        for group in (objects["RayCluster"]["spec"]["headGroupSpec"], *groups.values())
        for container in group["template"]["spec"]["containers"]
    }
    assert len(images) == 1


def test_the_job_is_a_command() -> None:
    words = _objects()["RayJob"]["spec"]["entrypoint"].split()
    assert words[:3] == ["tidemill", "cluster", "deploy"]
    group = app_of(["cluster"]).commands["cluster"]
    command = group.commands["deploy"]  # type: ignore[attr-defined]
    context = command.make_context("deploy", words[3:])
    [mount] = _objects()["RayCluster"]["spec"]["headGroupSpec"]["template"]["spec"]["containers"][
        0
    ]["volumeMounts"]
    assert str(context.params["config"]) == f"{mount['mountPath']}/cluster.toml"


def test_the_container_file() -> None:
    lint("hadolint", FOLDER / "Containerfile")
