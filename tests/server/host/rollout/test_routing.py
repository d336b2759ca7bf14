"""Which version answers: in proportion, sticky, and with the least movement."""

from __future__ import annotations

from collections import Counter

import pytest

from tidemill.server.host.rollout.routing import route, unit_of
from tidemill.server.host.rollout.traffic import Canary, Shadow, Single, Sticky, Weights

UNITS = [f"unit {i}" for i in range(4000)]
CANARY = Canary(stable="1", canary="2")


def versions(rule: Weights, name: str = "chat") -> list[str]:
    return [route(name, rule, unit).version for unit in UNITS]


def test_weights_share_the_units_in_proportion() -> None:
    found = Counter(versions(Weights(weights={"1": 70, "2": 20, "3": 10, "4": 0})))
    # Four standard deviations of a binomial of 4000 are at most 116.
    assert found["1"] == pytest.approx(2800, abs=116)
    assert found["2"] == pytest.approx(800, abs=102)
    assert found["3"] == pytest.approx(400, abs=76)
    assert found["4"] == 0


def test_a_changed_weight_moves_no_unit_between_the_others() -> None:
    before = versions(Weights(weights={"1": 1, "2": 1, "3": 1}))
    after = versions(Weights(weights={"3": 2, "2": 1, "1": 1}))
    moved = [(b, a) for b, a in zip(before, after, strict=True) if b != a]
    assert {a for _, a in moved} == {"3"}
    assert len(moved) == pytest.approx(4000 * (1 / 2 - 1 / 3), abs=100)


def test_only_the_units_of_a_removed_version_move() -> None:
    before = versions(Weights(weights={"1": 1, "2": 1, "3": 1}))
    after = versions(Weights(weights={"1": 1, "2": 1}))
    assert all(b in ("3", a) for b, a in zip(before, after, strict=True))


def test_a_choice_is_the_same_in_every_process_and_release() -> None:
    rule = Weights(weights={"1": 1, "2": 1})
    assert "".join(route("chat", rule, u).version for u in UNITS[:24]) == "122221221121111112211121"
    assert route("chat", rule, "a").unit == 0x66A4B7FAE10AFD5C


def test_names_draw_independently() -> None:
    rule = Weights(weights={"1": 1, "2": 1})
    same = sum(a == b for a, b in zip(versions(rule), versions(rule, "coder"), strict=True))
    assert same == pytest.approx(2000, abs=127)


def test_a_unit_stays_with_the_canary_while_its_share_grows() -> None:
    inside: set[str] = set()
    for percent in (1, 5, 25, 50, 100):
        now = {u for u in UNITS if route("chat", CANARY, u, percent=percent, step=3).version == "2"}
        assert inside <= now
        assert len(now) == pytest.approx(40 * percent, abs=130 if percent < 100 else 0)
        inside = now


def test_a_canary_of_no_percent_gets_nothing() -> None:
    assert {route("chat", CANARY, u, percent=0).version for u in UNITS} == {"1"}


def test_a_choice_says_in_which_step_it_was_made() -> None:
    assert route("chat", CANARY, "a", percent=50, step=3).step == 3
    assert route("chat", Single(version="1"), "a").step == -1


def test_a_shadow_copies_a_fraction_and_never_answers() -> None:
    choices = [route("chat", Shadow(version="1", shadow="2", fraction=0.25), u) for u in UNITS]
    assert {c.version for c in choices} == {"1"}
    assert sum(c.shadow == "2" for c in choices) == pytest.approx(1000, abs=110)
    assert all(c.shadow in (None, "2") for c in choices)


@pytest.mark.parametrize(
    ("sticky", "principal", "user", "same_as"),
    [
        ("request", "ann", "u", ("request", None, None)),
        ("key", "ann", "u", ("key", "ann", None)),
        ("key", None, "u", ("request", None, None)),
        ("user", "ann", None, ("key", "ann", None)),
        ("user", None, None, ("request", None, None)),
    ],
)
def test_what_is_missing_falls_back_to_what_is_narrower(
    sticky: Sticky,
    principal: str | None,
    user: str | None,
    same_as: tuple[Sticky, str | None, str | None],
) -> None:
    other = unit_of(same_as[0], request_id="r", principal=same_as[1], user=same_as[2])
    assert unit_of(sticky, request_id="r", principal=principal, user=user) == other


def test_users_of_different_keys_are_different() -> None:
    ann = unit_of("user", request_id="1", principal="ann", user="u")
    assert ann != unit_of("user", request_id="1", principal="bob", user="u")
    assert ann == unit_of("user", request_id="2", principal="ann", user="u")


def test_a_user_with_half_a_surrogate_is_routed() -> None:
    route("chat", CANARY, unit_of("user", request_id="1", principal=None, user="\ud800"))
