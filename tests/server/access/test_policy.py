"""What a key may do beyond its role."""

from __future__ import annotations

import ipaddress

import pytest

from tidemill.server.access.policy import OPEN, Policy
from tidemill.server.errors import Rejection


def test_nothing_is_forbidden_unless_something_is_said() -> None:
    OPEN.check_model("k", "any")
    OPEN.check_route("k", "/v1/models")
    OPEN.check_address("k", "")
    OPEN.check_residency("k", "")


@pytest.mark.parametrize(
    ("names", "allowed"),
    [
        (("brook",), True),
        (("brook@2",), True),
        (("llama-3.1-8b",), True),
        (("gpt-4", "brook"), True),  # a further name of a model that may be used
        (("brook2",), False),
        (("xllama-3",), False),
        (("Brook",), False),
        (("brook\nx",), False),
        (("",), False),
    ],
)
def test_models_by_pattern(names: tuple[str, ...], allowed: bool) -> None:
    policy = Policy(models=("brook", "llama-*"))
    assert policy.allows_model(*names) is allowed
    if not allowed:
        with pytest.raises(Rejection) as caught:
            policy.check_model("ann", *names)
        problem = caught.value.problem
        assert (problem.status, problem.param, problem.code) == (403, "model", "model_not_allowed")
        assert "'llama-*'" in problem.message and "'ann'" in problem.message


def test_routes_by_pattern() -> None:
    policy = Policy(routes=("/v1/chat/*", "/v1/models"))
    policy.check_route("k", "/v1/chat/completions")
    for path in ("/v1/embeddings", "/v1/models/x", "/x/v1/models"):
        with pytest.raises(Rejection, match="/v1/chat/"):
            policy.check_route("k", path)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("2001:db8::5", True),
        ("11.1.2.3", False),
        ("2001:db9::5", False),
        ("", False),
        ("localhost", False),
    ],
)
def test_addresses_by_network(host: str, allowed: bool) -> None:
    networks = tuple(ipaddress.ip_network(n) for n in ("10.0.0.0/8", "2001:db8::/32"))
    policy = Policy(networks=networks)
    if allowed:
        policy.check_address("k", host)
        return
    with pytest.raises(Rejection) as caught:
        policy.check_address("k", host)
    assert "10." not in caught.value.problem.message  # nothing for who stole the key


def test_residency() -> None:
    policy = Policy(residency="eu")
    policy.check_residency("k", "eu")
    for region in ("us", ""):
        with pytest.raises(Rejection, match="'eu'"):
            policy.check_residency("k", region)
