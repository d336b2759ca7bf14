"""What targets say that they have cached, and what a gateway makes of it."""

from __future__ import annotations

from tidemill.gateway.routing.announced import GRACE_SECONDS, Announced, Prompt
from tidemill.gateway.routing.prefixes import keys_of

BLOCK = 32
KEY_TOKENS = 64


def _digest(name: str) -> bytes:
    return name.encode().ljust(16, b".")


def _chain(*names: str) -> bytes:
    """Blocks, each after the one before."""
    found, parent = b"", _digest("root")
    for name in names:
        found += _digest(name) + parent
        parent = _digest(name)
    return found


def _tell(
    announced: Announced,
    target: str,
    added: bytes = b"",
    *,
    removed: bytes = b"",
    anew: bool = False,
    prompts: tuple[Prompt, ...] = (),
    identity: str = "one",
) -> bool:
    return announced.told(
        target,
        "m",
        identity,
        BLOCK,
        anew=anew,
        added=added,
        removed=removed,
        prompts=prompts,
    )


TEXT = bytes(range(256)) * 4  # four keys; 8 blocks of 32 tokens of 4 bytes
NAMES = [f"b{i}" for i in range(8)]


def _taught() -> Announced:
    """Target a computed TEXT; b says what it has, too, and has nothing."""
    announced = Announced(KEY_TOKENS)
    for target in "ab":
        _tell(announced, target, anew=True)
    assert announced.note("a", "m", "r", keys_of("", TEXT), 4.0)
    told = ("r", _digest("b7"), 8, 256)
    assert _tell(announced, "a", _chain(*NAMES), prompts=(told,))
    return announced


def test_a_target_has_what_it_says() -> None:
    announced, keys = _taught(), keys_of("", TEXT)
    assert announced.matched("a", "m", keys, 0.0) == 256
    assert announced.matched("b", "m", keys, 0.0) == 0
    assert announced.matched("c", "m", keys, 0.0) is None
    _tell(announced, "a", removed=_digest("b7") + _digest("b6"))
    assert announced.matched("a", "m", keys, 0.0) == 192
    _tell(announced, "a", anew=True)
    assert announced.matched("a", "m", keys, 0.0) == 0
    assert (announced.blocks("a"), announced.blocks("c")) == (0, None)


def test_what_one_target_told_is_found_at_another() -> None:
    """Whoever sent it there: another gateway, a client, a peer."""
    announced, keys = _taught(), keys_of("", TEXT)
    _tell(announced, "b", _chain(*NAMES[:5]))
    assert announced.matched("b", "m", keys, 0.0) == 128
    _tell(announced, "d", _chain(*NAMES), identity="another")  # whose blocks are others
    assert announced.matched("d", "m", keys, 0.0) == 0


def test_what_is_on_its_way_is_presumed_for_a_while() -> None:
    announced, keys = Announced(KEY_TOKENS), keys_of("", TEXT)
    _tell(announced, "a", anew=True)
    announced.note("a", "m", "r", keys[:2], 2.0)
    assert announced.matched("a", "m", keys, 0.0) == 2 * KEY_TOKENS
    announced.ended("a", "m", "r", 10.0)
    assert announced.matched("a", "m", keys, 10.0) == 2 * KEY_TOKENS
    assert announced.matched("a", "m", keys, 10.1 + GRACE_SECONDS) == 0


def test_a_key_that_ends_elsewhere_than_presumed_ends_earlier() -> None:
    """The texts share three keys, of which the tail's dense tokens made a wrong guess."""
    announced = Announced(KEY_TOKENS)
    _tell(announced, "a", anew=True)
    first, second = keys_of("", TEXT[:768] + b"1" * 256), keys_of("", TEXT[:768] + b"2" * 256)
    assert first[:3] == second[:3]
    announced.note("a", "m", "r", first, 4.0)
    _tell(announced, "a", _chain(*NAMES), prompts=(("r", _digest("b7"), 8, 256),))
    assert announced.matched("a", "m", second, 0.0) == 192  # presumably
    announced.note("a", "m", "s", second, 4.0)
    other = [*NAMES[:5], "c5", "c6", "c7"]  # they differ from the sixth block on
    _tell(announced, "a", _chain(*other), prompts=(("s", _digest("c7"), 8, 256),))
    assert announced.matched("a", "m", first[:3], 0.0) == 128
    assert announced.matched("a", "m", second, 0.0) == 256


def test_requests_of_others_and_prompts_of_which_a_part_is_gone_teach_nothing() -> None:
    announced, keys = Announced(KEY_TOKENS), keys_of("", TEXT)
    _tell(announced, "a", anew=True)
    _tell(announced, "a", _chain(*NAMES), prompts=(("unknown", _digest("b7"), 8, 256),))
    assert announced.matched("a", "m", keys, 0.0) == 0
    announced.note("a", "m", "r", keys, 4.0)
    gone = _digest("b3")
    _tell(announced, "a", removed=gone, prompts=(("r", _digest("b7"), 8, 256),))
    assert announced.matched("a", "m", keys, 0.0) == 0


def test_a_prompt_of_less_than_a_block_has_nothing_cached() -> None:
    announced, keys = Announced(KEY_TOKENS), keys_of("", TEXT)
    _tell(announced, "a", anew=True)
    announced.note("a", "m", "r", keys, 4.0)
    _tell(announced, "a", prompts=(("r", b"", 0, 20),))
    assert announced.matched("a", "m", keys, 0.0) == 0


def test_no_more_keys_are_remembered_than_may_be() -> None:
    announced, keys = Announced(KEY_TOKENS, most_ends=2), keys_of("", TEXT)
    _tell(announced, "a", anew=True)
    announced.note("a", "m", "r", keys, 4.0)
    _tell(announced, "a", _chain(*NAMES), prompts=(("r", _digest("b7"), 8, 256),))
    assert announced.matched("a", "m", keys, 0.0) == 0  # its first ones are forgotten
    assert announced.matched("a", "m", keys[2:], 0.0) == 256


def test_a_model_has_other_names_where_a_target_has_one() -> None:
    announced, keys = _taught(), keys_of("", TEXT)
    assert announced.matched("a", "m-latest", keys, 0.0) == 256
    announced.told("a", "n", "two", BLOCK, anew=True, added=b"", removed=b"", prompts=())
    assert announced.matched("a", "m-latest", keys, 0.0) is None
    assert announced.matched("a", "m", keys, 0.0) == 256
    announced.forget("a", but={"n"})
    assert announced.matched("a", "m", keys, 0.0) == 0  # n's blocks are none of its
