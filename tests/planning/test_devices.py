"""Devices of one's own in TOML."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.base.errors import TidemillError
from tidemill.planning.device_table import DEVICES
from tidemill.planning.devices import read_devices

OWN = """
[box]
memory = "64GiB"
bandwidth_gbps = 273
tflops = { bfloat16 = 60, int8 = 120 }
watts = 140
usd_per_hour = 0.2
source = "data sheet"
read_share = 0.8
compute_share = 0.5
layer_microseconds = 30
spread = 0.4

[faster]
memory = "96GiB"
bandwidth_gbps = 4000
tflops = { bfloat16 = 900 }
like = "h100-sxm"
"""


def read(tmp_path: Path, text: str) -> dict[str, object]:
    path = tmp_path / "devices.toml"
    path.write_text(text)
    return dict(read_devices(path, DEVICES))


def test_devices_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "devices.toml"
    path.write_text(OWN)
    found = read_devices(path, DEVICES)
    box, faster = found["box"], found["faster"]
    assert (box.memory, box.bandwidth, box.watts, box.price) == (64 * 2**30, 273e9, 140, 0.2)
    assert (box.attainment.read, box.attainment.layer_seconds) == (0.8, 30e-6)
    assert box.rate("bfloat16") == 60e12 and box.rate("float32") == 30e12
    assert box.rate("int8") == box.rate("q8_0") == box.rate("f8_e4m3") == 120e12
    assert box.rate("q4_k") == 60e12
    assert faster.attainment.read == DEVICES["h100-sxm"].attainment.read
    assert faster.attainment.basis == "as h100-sxm" and faster.price is None
    assert faster.rate("q8_0") == 900e12  # it has no 8 bits


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('memory = "64GiB"', 'memory = "much"', "memory must be a size"),
        ("bandwidth_gbps = 273", "bandwidth_gbps = -1", "bandwidth_gbps must be a number above 0"),
        ("bandwidth_gbps = 273", "bandwidth_gbps = true", "bandwidth_gbps must be a number"),
        ("bfloat16 = 60, int8", "int9", "tflops must be a table with some of"),
        ("bfloat16 = 60, ", "", "needs float32 or bfloat16"),
        ("watts = 140", "wats = 140", "wats is unknown"),
        ('like = "h100-sxm"', 'like = "h99"', "names no device"),
        ("read_share = 0.8", "", "read_share must be a number"),
        ("[box]", "box = 1\n[other]", "must be a table"),
        ("[box]", "[box", "cannot be read as TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in OWN
    with pytest.raises(TidemillError, match=said) as caught:
        read(tmp_path, OWN.replace(old, new, 1))
    assert caught.value.param == "devices"


def test_weights_far_from_those_measured_are_said_to_be_extrapolated() -> None:
    found = DEVICES["h100-sxm"].attainment
    assert found.beyond(7e9) is None and found.beyond(13e9) is None
    assert "0.01 GB (measured: 6 to 70 GB)" in str(found.beyond(1e7))
    assert found.beyond(150e9) is not None
