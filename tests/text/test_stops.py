"""Stop strings compared with a naive search over the whole text."""

from __future__ import annotations

import tracemalloc

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidemill.text.stops import StopMatcher, StopSet

small_text = st.text(alphabet="ab", max_size=40)
stop_lists = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=4)


def naive(text: str, stops: list[str], armed_from: int = 0) -> tuple[str, str | None]:
    """Text before the first match to be complete at or after `armed_from`, and which it is."""
    for end in range(max(1, armed_from), len(text) + 1):
        ending = [s for s in stops if text[:end].endswith(s)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


def run(parts: list[str], stops: list[str]) -> tuple[list[str], StopMatcher]:
    matcher = StopMatcher(stops)
    shown = []
    for part in parts:
        text, stopped = matcher.push(part)
        shown.append(text)
        assert stopped == (matcher.matched is not None)
    return [*shown, matcher.finish()], matcher


@settings(max_examples=500, deadline=None)
@given(parts=st.lists(st.text(alphabet="ab", max_size=6), max_size=10), stops=stop_lists)
@example(parts=["xab", "ab", "c"], stops=["abc", "babb"])
def test_equals_the_naive_search(parts: list[str], stops: list[str]) -> None:
    text, matched = naive("".join(parts), stops)
    shown, matcher = run(parts, stops)
    assert "".join(shown) == text
    assert matcher.matched == matched


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(st.text(alphabet="ab", max_size=6), max_size=10), stops=stop_lists)
def test_nothing_leaks_and_nothing_is_held_needlessly(parts: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    final, _ = naive("".join(parts), stops)
    seen = shown = ""
    for part in parts:
        seen += part
        shown += matcher.push(part)[0]
        assert final.startswith(shown)
        if matcher.matched is None:
            held = seen[len(shown) :]
            longest = max(
                (n for s in stops for n in range(len(s)) if seen.endswith(s[:n])), default=0
            )
            assert len(held) == longest


@settings(max_examples=300, deadline=None)
@given(
    parts=st.lists(st.text(alphabet="ab", max_size=4), max_size=10),
    stops=stop_lists,
    unarmed=st.integers(0, 10),
)
def test_matches_before_it_is_armed_are_text(
    parts: list[str], stops: list[str], unarmed: int
) -> None:
    matcher = StopMatcher(stops)
    shown = [matcher.push(p, armed=i >= unarmed)[0] for i, p in enumerate(parts)]
    first_end = len("".join(parts[:unarmed])) + 1
    text, matched = naive("".join(parts), stops, first_end)
    assert "".join(shown) + matcher.finish() == text
    assert matcher.matched == matched


def test_first_to_be_complete_wins_and_the_longest_of_those() -> None:
    shown, matcher = run(["xabc"], ["abc", "b"])
    assert ("".join(shown), matcher.matched) == ("xa", "b")
    shown, matcher = run(["xabc"], ["bc", "abc"])
    assert ("".join(shown), matcher.matched) == ("x", "abc")


def test_text_after_a_match_is_dropped() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("one EN") == ("one ", False)
    assert matcher.push("D two") == ("", True)
    assert matcher.push("three") == ("", True)
    assert matcher.finish() == ""


def test_held_text_comes_at_the_end() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.push("answer\n\nUse") == ("answer", False)
    assert matcher.finish() == "\n\nUse"


def test_characters_that_mean_something_in_patterns() -> None:
    for stop in ["]", "^a", "-", "\\", "[", "a-z"]:
        shown, matcher = run(["x.y", stop, "z"], [stop])
        assert ("".join(shown), matcher.matched) == ("x.y", stop)


def test_matchers_that_share_a_set_do_not_share_a_text() -> None:
    shared = StopSet(["ab" * 500, "END"])
    one, other = StopMatcher(shared), StopMatcher(shared)
    assert one.push("xEN") == ("x", False) and other.push("EN") == ("", False)
    assert one.push("D") == ("", True) and other.push("x") == ("ENx", False)


def test_matchers_share_what_was_compiled() -> None:
    shared = StopSet(["ab" * 5000, "END"])
    tracemalloc.start()
    try:
        matchers = [StopMatcher(shared) for _ in range(50)]
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(matchers) == 50 and taken < 50 * 2000, "a table of one has 10,000 entries"


def test_the_match_is_part_of_the_text_where_it_is_included() -> None:
    matcher = StopMatcher(["END", "ND!"], include=True)
    assert [matcher.push(part)[0] for part in ("a E", "N", "D! b", "c")] == ["a ", "", "END", ""]
    assert matcher.matched == "END"
