"""W3C trace context, by the examples and the rules of its specification."""

from __future__ import annotations

import pytest

from tidemill.base.trace_context import TraceContext, trace_context

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


def of(*parents: str, state: tuple[str, ...] = (), baggage: tuple[str, ...] = ()) -> object:
    headers = {"traceparent": parents, "tracestate": state, "baggage": baggage}
    return trace_context(lambda name: headers[name])


def test_it_is_read_and_written() -> None:
    found = of(GOOD, state=("rojo=00f067aa0ba902b7", "congo=t61rcWkgMzE"), baggage=("a=1;p", "b=2"))
    assert isinstance(found, TraceContext)
    assert found.sampled and (found.trace_id, found.span_id) == (TRACE, SPAN)
    assert found.headers() == {
        "traceparent": GOOD,
        "tracestate": "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
        "baggage": "a=1;p,b=2",
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        GOOD.upper(),
        GOOD + "-more",
        GOOD[:-1],
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-0g",
        f"01-{TRACE}-{SPAN}-01more",
    ],
)
def test_what_is_malformed_is_ignored(text: str) -> None:
    assert of(text) is None


def test_one_that_comes_twice_is_ignored() -> None:
    assert of(GOOD, GOOD) is None


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    found = of(f"cc-{TRACE}-{SPAN}-ff-what the future will be like")
    assert isinstance(found, TraceContext) and found.flags == 1


@pytest.mark.parametrize(
    "state", ["a=1,a=2", "A=1", "a", "a=\N{BULLET}", ",".join(f"k{i}=1" for i in range(33))]
)
def test_a_malformed_state_is_dropped_and_the_parent_kept(state: str) -> None:
    found = of(GOOD, state=(state,))
    assert isinstance(found, TraceContext) and found.state == "" and found.trace_id == TRACE


@pytest.mark.parametrize("baggage", ["a=1\r\nx: y", "a=" + "b" * 8192, "a=\N{BULLET}"])
def test_baggage_that_could_do_harm_is_dropped(baggage: str) -> None:
    found = of(GOOD, baggage=(baggage,))
    assert isinstance(found, TraceContext) and found.baggage == ""


def test_it_is_not_sampled_where_the_client_does_not() -> None:
    found = of(f"00-{TRACE}-{SPAN}-00")
    assert isinstance(found, TraceContext) and not found.sampled
