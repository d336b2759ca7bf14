"""Latencies, throughput, energy and cost from the times of steps; and their picture."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree import ElementTree

import pytest

from tidemill.base.errors import TidemillError
from tidemill.planning.plot import svg
from tidemill.planning.predict import predict, read_objectives
from tidemill.planning.timing import Seconds, decode_step, prefill
from tidemill.planning.work import Rows


@dataclass(frozen=True)
class Plain:
    """Steps of 1 ms, 0.1 ms per token, and 1 µs per position of the cache; `extra` per request."""

    basis: str = "arithmetic"
    max_step_tokens: int = 100
    extra: float = 0.0

    def step(self, rows: Rows) -> Seconds:
        reach = rows.count * (rows.start + rows.tokens)
        value = 1e-3 + 1e-4 * rows.count * rows.tokens + 1e-6 * reach
        return Seconds(value, value / 1.1, value * 1.1)

    def request(self, prompt: int) -> Seconds:
        return Seconds(self.extra, self.extra / 1.1, self.extra * 1.1)


def test_prompts_are_computed_in_steps() -> None:
    timing = Plain()
    assert prefill(timing, 100).value == pytest.approx(1e-3 + 1e-2 + 1e-4)
    # Two steps of 100 and one of 50, at 0, 100 and 200.
    assert prefill(timing, 250).value == pytest.approx(3e-3 + 25e-3 + (100 + 200 + 250) * 1e-6)
    # Four prompts of 50: two in each of two steps.
    assert prefill(timing, 50, 4).value == pytest.approx(2 * (1e-3 + 1e-2 + 1e-4))
    assert prefill(timing, 50, 3).value == pytest.approx(2e-3 + 15e-3 + 15e-5)


def test_a_token_costs_more_as_the_answer_grows() -> None:
    assert decode_step(Plain(), 4, 100, 200).value == pytest.approx(1e-3 + 4e-4 + 4 * 201e-6)


def test_one_stream_and_many() -> None:
    found = predict(Plain(), prompt=100, output=50, most=40, watts=100.0, price=3.6)
    assert [point.concurrency for point in found.points] == [1, 2, 4, 8, 16, 32]
    one, two = found.points[:2]
    step = 1e-3 + 1e-4 + 126e-6
    assert one.ttft_ms.value == pytest.approx(11.1)
    assert one.tpot_ms.value == pytest.approx(step * 1e3)
    assert one.output_tokens_per_second.value == pytest.approx(50 / (0.0111 + 49 * step))
    # The other's prompt is computed once while a stream's answer of 50 tokens is.
    second = 1e-3 + 2e-4 + 2 * 126e-6
    assert two.tpot_ms.value == pytest.approx((second + 0.0111 / 50) * 1e3)
    rates = [point.output_tokens_per_second.value for point in found.points]
    assert rates == sorted(rates) and found.best == 32
    tokens = one.output_tokens_per_second
    assert one.joules_per_token is not None and one.usd_per_million_tokens is not None
    assert one.joules_per_token.value == pytest.approx(75 / tokens.value)
    assert one.joules_per_token.low == pytest.approx(50 / tokens.high)
    assert one.usd_per_million_tokens.value == pytest.approx(1000 / tokens.value)
    for point in found.points:
        for estimate in (point.ttft_ms, point.tpot_ms, point.output_tokens_per_second):
            assert estimate.low == pytest.approx(estimate.value / 1.1)
            assert estimate.high == pytest.approx(estimate.value * 1.1)


def test_what_a_request_takes_beside_its_steps_delays_its_first_token_alone() -> None:
    plain, slow = (
        predict(Plain(extra=extra), prompt=100, output=50, most=4).points for extra in (0.0, 0.005)
    )
    for one, other in zip(plain, slow, strict=True):
        assert other.ttft_ms.value == pytest.approx(one.ttft_ms.value + 5)
        assert other.tpot_ms == one.tpot_ms
        assert other.requests_per_second.value < one.requests_per_second.value


def test_objectives_choose_the_number_of_streams() -> None:
    wanted = read_objectives("ttft<1s, itl<=3ms")
    assert wanted == {"ttft": 1000.0, "tpot": 3.0}
    found = predict(Plain(), prompt=100, output=50, most=64, objectives=wanted)
    met = [point.concurrency for point in found.points if point.meets]
    assert met and found.best == max(met) < 64
    for point in found.points:
        assert point.meets == (point.tpot_ms.value <= 3.0)
        assert point.surely == (point.tpot_ms.high <= 3.0)
    hard = predict(Plain(), prompt=100, output=50, most=64, objectives={"ttft": 1.0})
    assert hard.best is None
    assert read_objectives(None) == {}


@pytest.mark.parametrize("text", ["ttft", "ttft<", "e2e<1s", "ttft<-1s", "ttft<1s;itl<1s", "itl<x"])
def test_objectives_that_are_none(text: str) -> None:
    with pytest.raises(TidemillError, match="--objective is a list"):
        read_objectives(text)


def test_the_picture_has_all_points_and_the_objectives_line() -> None:
    found = predict(Plain(), prompt=100, output=50, most=64, objectives={"tpot": 3.0})
    picture = svg(found, "m & <n>")
    root = ElementTree.fromstring(picture)
    space = "{http://www.w3.org/2000/svg}"
    dots = root.findall(f"{space}circle")
    assert len(dots) == len(found.points) == 7
    across = [float(dot.get("cx", "0")) for dot in dots]
    assert across == sorted(across) and all(70 <= x <= 736 for x in across)
    texts = [text.text or "" for text in root.iter(f"{space}text")]
    assert "objective: 3 ms per token" in texts and "m & <n>" in texts
    plain = predict(Plain(), prompt=100, output=50, most=1)
    assert "objective" not in svg(plain, "one")
