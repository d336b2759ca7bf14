"""A real Prometheus takes what `tidemill dashboards` writes: rules and configuration are checked,
every alert fires when it should, and every query of the dashboard is answered from a real server.

make monitoring    # needs Debian's package prometheus, or PROMETHEUS=FOLDER of its programs
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
from helpers.addresses import free_address
from helpers.real_server import RealServer

from tidemill.cli.dashboards import SCRAPE, dashboards
from tidemill.metrics.monitoring.alerts import Objectives, alerts
from tidemill.metrics.monitoring.dashboard import queries

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"

# Series under which each alert fires: an hour of values, one a minute (promtool's notation).
_UP, _FLAT = "0+60x60", "0x60"
FIRES: Mapping[str, Mapping[str, str]] = {
    "Errors": {
        'http_responses_total{instance="a",status="503"}': _UP,
        'http_responses_total{instance="a",status="200"}': _UP,
    },
    "Refusing": {
        'requests_refused_total{instance="a",model="m",reason="queue"}': _UP,
        'requests_total{instance="a",model="m",reason="stop"}': _UP,
    },
    "SlowFirstToken": {
        'ttft_seconds_bucket{model="m",le="5"}': _FLAT,
        'ttft_seconds_bucket{model="m",le="10"}': _UP,
        'ttft_seconds_bucket{model="m",le="+Inf"}': _UP,
    },
    "SlowTokens": {
        'itl_seconds_bucket{model="m",le="0.5"}': _FLAT,
        'itl_seconds_bucket{model="m",le="1"}': _UP,
        'itl_seconds_bucket{model="m",le="+Inf"}': _UP,
    },
    "QueueFull": {
        'queue_tokens{model="m"}': "95x60",
        'queue_tokens_bound{model="m"}': "100x60",
    },
    "EnginesReplaced": {'engine_restarts_total{instance="a",model="m",cause="crash"}': "0x55 2x5"},
    "EnginesKeepEnding": {'engine_restarts_total{instance="a",model="m",cause="crash"}': "0+1x60"},
    "KvCacheFull": {
        'kv_usage_ratio{model="m"}': "0.99x60",
        'preemptions_total{model="m"}': _UP,
    },
    "KvTierNotWritten": {
        'kv_tier_blocks_total{instance="a",model="m",tier="disk",outcome="unsaved"}': _UP
    },
    "KvTierDamaged": {
        'kv_tier_blocks_total{instance="a",model="m",tier="disk",outcome="damaged"}': _UP
    },
    "StepsSlowerThanPredicted": {
        'step_predicted_measured_seconds_total{model="m"}': "0+2x60",
        'step_predicted_seconds_total{model="m"}': "0+1x60",
    },
    "DatabaseDown": {'database_available{instance="a"}': _FLAT},
    "UsageLost": {'usage_records_lost_total{instance="a"}': _UP},
    "UsageWaits": {'usage_records_waiting{instance="a"}': "20000x60"},
    "RolloutRolledBack": {'rollout_events_total{model="m",event="rolled back"}': "0x55 1x5"},
    "SpeculationLoses": {'speculation_saved_seconds{model="m",how="measured"}': "-20x60"},
    "TargetDown": {'gateway_target_up{instance="a",target="b"}': _FLAT},
    "SlowReaders": {'slow_readers_total{instance="a"}': _UP},
}

# Of features that this server has not used.
_UNUSED = re.compile(
    r"drafter|draft|speculation|adapter_|version_|rollout|shadow|quota|cost|preemptions|database|gateway|energy|carbon|"
    r"usage_records|requests_refused|engine_restarts|brought_seconds|status=~\"5"
)


def program(name: str) -> str:
    """A program of the package; exits where there is none."""
    found = shutil.which(name, path=os.environ.get("PROMETHEUS") or None)
    if found is None:
        sys.exit(f"{name} is missing: apt-get install prometheus, or set PROMETHEUS to its folder")
    return found


def promtool(*arguments: str, given: bytes = b"") -> str:
    """What it says; raises where it finds a fault."""
    ran = subprocess.run(
        [program("promtool"), *arguments], input=given, capture_output=True, check=False
    )
    text = (ran.stdout + ran.stderr).decode()
    assert ran.returncode == 0, text
    return text


def check_alerts(folder: Path) -> None:
    """Each alert fires under its own series, and none without any."""
    names = [alert.name for alert in alerts(Objectives())]
    assert set(names) == set(FIRES)
    tests = [_test(f"Tidemill{name}", series, "1") for name, series in FIRES.items()]
    quiet = {'requests_total{instance="a",model="m",reason="stop"}': _UP}
    tests.append(_test("", quiet, "0"))
    document = {
        "rule_files": ["prometheus-alerts.yml"],
        "evaluation_interval": "1m",
        "tests": tests,
    }
    (folder / "alerts-test.yml").write_text(json.dumps(document))
    promtool("test", "rules", str(folder / "alerts-test.yml"))
    print(f"{len(names)} alerts fire")


def _test(name: str, series: Mapping[str, str], count: str) -> dict[str, object]:
    matcher = f'alertname="{name}",' if name else ""
    expression = f'count(ALERTS{{{matcher}alertstate="firing"}}) or vector(0)'
    return {
        "interval": "1m",
        "input_series": [
            {"series": f"tidemill_{one}", "values": values} for one, values in series.items()
        ],
        "promql_expr_test": [
            {
                "expr": expression,
                "eval_time": "58m",
                "exp_samples": [{"labels": "{}", "value": float(count)}],
            }
        ],
    }


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[httpx.Client]:
    """A Prometheus that scrapes a server each second."""
    config = SCRAPE.replace("127.0.0.1:8000", target).replace("15s", "1s")
    (folder / "prometheus.yml").write_text(config)
    address = free_address()
    process = subprocess.Popen(
        [
            program("prometheus"),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
            "--enable-feature=exemplar-storage",
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        with httpx.Client(base_url=f"http://{address}/api/v1", timeout=30) as http:
            _wait(lambda: _ready(address))
            yield http
    finally:
        process.terminate()
        process.wait(20)


def _ready(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/-/ready").status_code == 200
    except httpx.HTTPError:
        return False


def _wait(ready: object, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not ready():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.2)


def check_queries(http: httpx.Client) -> None:
    """Every query and every alert's expression is answered; those of used features with values."""
    asked = [*queries(), *(alert.expression for alert in alerts(Objectives()))]
    empty = []
    for query in asked:
        answer = http.get("/query", params={"query": query}).json()
        assert answer["status"] == "success", (query, answer)
        if not answer["data"]["result"] and query in queries() and not _UNUSED.search(query):
            empty.append(query)
    assert not empty, "no values: " + "\n".join(empty)
    print(f"{len(asked)} queries are answered")


def main() -> None:
    """All checks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dashboards(folder, ttft=5.0, itl=0.5, runbooks="")
        promtool("check", "config", str(folder / "prometheus.yml"))
        check_alerts(folder)
        flags = (
            "--database",
            "none",
            "--metrics-aliases",
            "vllm",
            "--kv-disk",
            f"{folder}/kv:64MiB",
        )
        with RealServer(*flags) as server:
            parent = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
            with prometheus(folder, server.url.removeprefix("http://")) as http:
                for i in range(8):
                    body = {"prompt": f"{i} some words " * 40, "max_tokens": 40}
                    server.http.post("/v1/completions", json=body, headers=parent)
                    time.sleep(1)
                lines = server.http.get("/metrics").content.splitlines(keepends=True)
                ours = b"".join(line for line in lines if b"vllm:" not in line)  # which break rules
                promtool("check", "metrics", given=ours)
                check_queries(http)
                params = {"query": "tidemill_ttft_seconds_bucket", "start": str(time.time() - 60)}
                found = http.get("/query_exemplars", params=params | {"end": str(time.time())})
                assert TRACE in found.text, found.text
                alias = http.get("/query", params={"query": "vllm:prompt_tokens_total"}).json()
                assert alias["data"]["result"]
                print("exemplars lead to the trace; names of vLLM are there")


if __name__ == "__main__":
    main()
