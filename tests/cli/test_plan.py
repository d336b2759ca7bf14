"""`tidemill plan` as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.sparse_model import LLAMA_7B, write_sparse

from tidemill.library.home import COSTS, default_home
from tidemill.simulate.costs import read_costs


def plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidemill", "plan", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))


def test_the_bundled_model_on_this_machine() -> None:
    result = plan("brook", "--json", "--context", "1024", "--concurrency", "2")
    assert result.returncode == 0 and not result.stderr
    document = json.loads(result.stdout)
    for name in ("weights_bytes", "kv_bytes_per_token", "overhead_bytes", "total_bytes"):
        assert isinstance(document[name], int) and document[name] > 0
    assert document["max_context"] == 4096 and document["fits"] is True
    assert document["cache_bytes"] == 2 * 1024 * document["kv_bytes_per_token"]
    assert document["predicted"] is None and "calibrate" in document["predicted_reason"]


def test_another_device_with_an_objective_and_a_picture(tmp_path: Path) -> None:
    model = write_sparse(tmp_path / "llama-7b", LLAMA_7B)
    picture = tmp_path / "plan.svg"
    result = plan(
        str(model), "--device", "a100-sxm-80gb", "--objective", "ttft<1s,itl<20ms",
        "--plot", str(picture),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    for said in ("A100 data sheet", "a100-sxm-80gb", "with the most throughput", "--kv-dtype int8"):
        assert said in " ".join(result.stdout.split())
    assert picture.read_text().startswith("<svg")
    small = plan(str(model), "--memory", "8GiB", "--context", "512")
    assert "no: the weights of llama-7b need" in " ".join(small.stdout.split())
    assert "No prediction: it does not fit" in " ".join(small.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("brook", "--device", "h99"), "--device 'h99' is not known; there are h100-sxm"),
        (("brook", "--context", "0"), "--context must be from 1 to"),
        (("brook", "--context", "100000"), "exceeds the 4096 positions"),
        (("brook", "--watts", "-1"), "--watts must be above 0"),
        (("brook", "--budget", "-1"), "--budget must be above 0"),
        (("brook", "--rate", "1", "--plot", "p.svg"), "--plot shows no fleet"),
        (
            ("brook", "--device", "l4", "--rate", "1", "--requests", "0", "--objective", "ttft<1s"),
            "requests must be at least 1",
        ),
        (("brook", "--rate", "nan"), "'nan' is not a finite number"),
        (("brook", "--device", "l4,l40s"), "--device names several for a fleet alone"),
        (("brook", "--tensor-parallel", "2"), "--tensor-parallel is of a fleet"),
        (("brook", "--objective", "fast"), "--objective is a list"),
        (("brook", "--memory", "much"), "--memory takes a size"),
        (("brook", "--plot", "p.svg"), "--plot has nothing to show"),
        (("brook", "--devices", "absent.toml"), "absent.toml: cannot be read"),
        (("./absent",), "no such file or folder"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(arguments: tuple[str, ...], said: str) -> None:
    result = plan(*arguments)
    assert result.returncode == 2 and said in result.stderr
    assert result.stderr.count("\n") == 1 and "Traceback" not in result.stderr


def test_devices_are_listed() -> None:
    result = plan("--device", "list")
    assert result.returncode == 0 and "h200-sxm" in result.stdout and "epyc-9554" in result.stdout


def test_calibration_makes_a_prediction(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tidemill", "calibrate", "brook", "--seconds", "1.5", "--threads",
         "1", "--kv-memory", "32MiB", "--max-model-len", "512"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "a token of one stream" in done.stdout and "kept in" in done.stdout
    assert "a request beside its steps" in done.stdout
    (path,) = (default_home() / COSTS).glob("brook-*.json")
    host = read_costs(path).host
    assert host.request > 0 and host.deliver > 0
    result = plan("brook", "--json", "--threads", "1", "--prompt", "32", "--output", "8")
    predicted = json.loads(result.stdout)["predicted"]
    assert predicted["points"][0]["tpot_ms"]["value"] > 0
    assert "measured on this machine" in predicted["basis"]
