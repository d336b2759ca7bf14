"""The Helm chart: rendered by Helm itself, checked by the schemas of three Kubernetes versions.

What the pods are told is checked by Tidemill: the command line reads the arguments,
``config check`` the deployment file, the gateway its targets.
"""

from __future__ import annotations

import base64
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tidemill.cli.main import app_of
from tidemill.gateway.config import read

kubernetes_validate = pytest.importorskip("kubernetes_validate")
helm = pytest.importorskip("helm_python")
yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "tidemill"
VERSIONS = ("1.30", "1.33", "1.37")
CUSTOM = {"ScaledObject", "ServiceMonitor"}  # of operators: no schema here
CONFIG = '[server]\nmemory = "6GiB"\n\n[[models]]\nname = "chat"\nsource = "owner/name:Q4_K_M"\n'
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "no volume": {"persistence": {"enabled": False}},
    "a deployment file": {"config": CONFIG, "sharedMemory": "1Gi"},
    "models": {
        "models": ["owner/name", "brook"],
        "extraArgs": ["--kv-dtype=int8", "--speculate=auto"],
    },
    "a team": {
        "replicas": 3,
        "gateway": {"enabled": True},
        "database": {"postgres": {"enabled": True}},
        "ingress": {
            "enabled": True,
            "host": "llm.example",
            "tlsSecret": "llm",
            "className": "nginx",
        },
        "networkPolicy": {"enabled": True, "egress": [{"ports": [{"port": 4317}]}]},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "tolerations": [{"key": "llm", "operator": "Exists"}],
        "nodeSelector": {"disk": "fast"},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
        "imagePullSecrets": [{"name": "registry"}],
        "priorityClassName": "serving",
    },
    "own secrets": {
        "auth": {"existingSecret": "mine", "keyFile": True},
        "database": {"existingSecret": "postgres"},
        "replicas": 2,
    },
    "hpa": {"autoscaling": {"hpa": {"enabled": True}}},
    "keda": {
        "autoscaling": {"keda": {"enabled": True, "idleReplicas": 0}},
        "gateway": {"enabled": True},
    },
}


def rendered(values: dict[str, Any]) -> list[dict[str, Any]]:
    with helm.Chart.load(CHART) as chart:
        files = chart.render(values=values, name="chat", namespace="llm")
    texts = (text for name, text in files.items() if not name.endswith("NOTES.txt"))
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


def of_kind(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    return next(o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name)


@pytest.mark.parametrize("case", CASES)
def test_objects_are_valid_in_three_versions_of_kubernetes(case: str) -> None:
    objects = rendered(CASES[case])
    assert len({(o["kind"], o["metadata"]["name"]) for o in objects}) == len(objects)
    for each in objects:
        if each["kind"] in CUSTOM:
            continue
        for version in VERSIONS:
            kubernetes_validate.validate(each, version, strict=True)


def containers(objects: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for each in objects:
        if each["kind"] in ("StatefulSet", "Deployment"):
            pod = each["spec"]["template"]["spec"]
            yield from ((pod, container) for container in pod["containers"])


@pytest.mark.parametrize("case", CASES)
def test_pods_may_nothing_and_have_every_volume_and_secret(case: str) -> None:
    objects = rendered(CASES[case])
    secrets = {o["metadata"]["name"]: set(o["data"]) for o in objects if o["kind"] == "Secret"} | {
        "mine": {"api-key", "secret", "keys.toml"},
        "postgres": {"url"},
    }
    for pod, container in containers(objects):
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["resources"]["limits"]["memory"]
        claims = {"data"}  # of the StatefulSets
        volumes = {v["name"]: v for v in pod.get("volumes", [])}
        assert {m["name"] for m in container["volumeMounts"]} <= volumes.keys() | claims
        for volume in volumes.values():
            if "secret" in volume:
                keys = {item["key"] for item in volume["secret"]["items"]}
                assert keys <= secrets[volume["secret"]["secretName"]]
        for variable in container["env"]:
            if "valueFrom" in variable:
                source = variable["valueFrom"]["secretKeyRef"]
                assert source["key"] in secrets[source["name"]]


def check(config: Path, flags: list[str]) -> None:
    arguments = ["config", "check", str(config), *flags]
    checked = CliRunner().invoke(app_of(arguments), arguments)
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize("case", CASES)
def test_tidemill_takes_what_the_pods_are_told(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = rendered(CASES[case])
    arguments = of_kind(objects, "StatefulSet", "chat-tidemill")["spec"]["template"]["spec"][
        "containers"
    ][0]["args"]
    assert arguments[0] == "serve"
    keys = tmp_path / "keys.toml"
    keys.write_text(
        '[[keys]]\nname = "prometheus"\nkey = "0123456789abcdef0123"\nrole = "metrics"\n'
    )
    if not CASES[case].get("auth"):
        data = of_kind(objects, "Secret", "chat-tidemill-auth")["data"]
        keys.write_bytes(base64.b64decode(data["keys.toml"]))
        assert base64.b64decode(data["metrics-key"]).decode() in keys.read_text()
    config = tmp_path / "tidemill.toml"
    config.write_text("")
    if CASES[case].get("config"):
        config.write_text(of_kind(objects, "ConfigMap", "chat-tidemill")["data"]["tidemill.toml"])
    flags = [
        each.replace("/etc/tidemill-keys/keys.toml", str(keys))
        for each in arguments[1:]
        if each.startswith("--") and not each.startswith("--config")
    ]
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path))
    check(config, flags)


def test_a_value_that_is_wrong_is_an_error_that_names_it() -> None:
    with helm.Chart.load(CHART) as chart:
        for values, name in (
            ({"replica": 2}, "replica"),
            ({"service": {"port": 0}}, "port"),
            ({"database": {"url": "mysql://host/name"}}, "url"),
            ({"persistence": {"size": "much"}}, "size"),
            ({"ingress": {"enabled": True}}, "ingress.host"),
            ({"autoscaling": {"hpa": {"enabled": True}, "keda": {"enabled": True}}}, "enable one"),
        ):
            with pytest.raises(Exception, match=name):
                chart.render(values=values, name="chat", namespace="llm")


def test_the_gateway_knows_every_engine_that_there_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = rendered(
        {**CASES["keda"], "autoscaling": {"maxReplicas": 5, "keda": {"enabled": True}}}
    )
    text = of_kind(objects, "ConfigMap", "chat-tidemill-gateway")["data"]["gateway.toml"]
    targets = tomllib.loads(text)["targets"]
    assert [target["name"] for target in targets] == [f"engine-{i}" for i in range(5)]
    engines = of_kind(objects, "StatefulSet", "chat-tidemill")
    headless = of_kind(objects, "Service", engines["spec"]["serviceName"])
    assert headless["spec"]["clusterIP"] == "None"
    host = f"chat-tidemill-0.{headless['metadata']['name']}.llm.svc:8000"
    assert targets[0]["url"] == f"http://{host}"
    gateway = of_kind(objects, "Deployment", "chat-tidemill-gateway")
    names = {each["name"] for each in gateway["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert {target["key_env"] for target in targets} <= names
    (file := tmp_path / "gateway.toml").write_text(text)
    monkeypatch.setenv("ENGINE_KEY", "0123456789abcdef")
    assert [target.name for target in read(file).targets] == [t["name"] for t in targets]
    arguments = gateway["spec"]["template"]["spec"]["containers"][0]["args"]
    known = {
        flag for option in app_of(["gateway"]).commands["gateway"].params for flag in option.opts
    }
    assert {each.partition("=")[0] for each in arguments[1:]} <= known
    api = of_kind(objects, "Service", "chat-tidemill")
    assert api["spec"]["selector"]["app.kubernetes.io/component"] == "gateway"


def test_engines_without_a_common_database_have_none() -> None:
    def database(values: dict[str, Any]) -> Any:
        _, container = next(containers(rendered(values)))
        names = [each["name"] for each in container["env"]]
        assert len(names) == len(set(names))
        return {e["name"]: e for e in container["env"]}.get("TIDEMILL_DATABASE")

    assert database({}) is None, "one engine keeps a file beside its models"
    assert database({"replicas": 2})["value"] == "none"
    postgres = {"replicas": 2, "database": {"url": "postgresql://u:p@host/name"}}
    assert database(postgres)["valueFrom"]["secretKeyRef"]["key"] == "url"
    assert database({**postgres, "gateway": {"enabled": True}})["value"] == "none", "counted once"


def test_kserve_is_told_what_tidemill_takes(tmp_path: Path) -> None:
    runtime = yaml.safe_load((DEPLOY / "kserve" / "serving-runtime.yaml").read_text())
    (container,) = runtime["spec"]["containers"]
    flags = [each for each in container["args"][2:] if not each.startswith("--served-name")]
    config = tmp_path / "tidemill.toml"
    config.write_text("")
    check(config, flags)
    # the pod that KServe makes of it, by Kubernetes' own schema
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "predictor"},
        "spec": {key: runtime["spec"][key] for key in ("containers", "volumes")},
    }
    for version in VERSIONS:
        kubernetes_validate.validate(pod, version, strict=True)
    service = yaml.safe_load((DEPLOY / "kserve" / "inference-service.yaml").read_text())
    formats = {each["name"] for each in runtime["spec"]["supportedModelFormats"]}
    assert service["spec"]["predictor"]["model"]["modelFormat"]["name"] in formats
    assert service["spec"]["predictor"]["model"]["runtime"] == runtime["metadata"]["name"]


def test_the_chart_is_of_this_version() -> None:
    import tidemill

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == tidemill.__version__
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values.keys() == schema["properties"].keys() - {"global"}
