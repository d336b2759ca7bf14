"""Which version answers: a keyed hash of what is sticky, without state.

Weights use weighted rendezvous hashing (Thaler & Ravishankar 1998; weights as in Schindelhauer &
Schomaker 2005): each version draws a number from the hash of (name, version, unit), and the best
weighted draw wins. When a weight changes, only units that enter or leave that version move.
A canary takes the units whose hash lies below its share, so that a unit, once in, stays in while
the share grows.
"""

from __future__ import annotations

import hashlib
import math

import msgspec

from tidemill.server.host.rollout.traffic import Canary, Shadow, Single, Sticky, Traffic, Weights


class Choice(msgspec.Struct, frozen=True):
    """Where one request goes.

    Attributes:
        version: the version that answers.
        shadow: the version that gets a copy, or None.
        step: the step of the rollout in which the choice was made; -1 outside of rollouts.
        unit: hash of what the choice was made by; 64 bits.
    """

    version: str
    shadow: str | None = None
    step: int = -1
    unit: int = 0


def unit_of(sticky: Sticky, *, request_id: str, principal: str | None, user: str | None) -> str:
    """What keeps its version. A request without a user falls back to its key, one without a key
    to itself. Users of different keys are different users.

    Args:
        sticky: of the rule.
        request_id: unique, made by the server: a client that chose it could choose its version.
        principal: name of the API key, or None without keys.
        user: the request's `user` field.
    """
    if sticky == "user" and user:
        return f"user\0{principal or ''}\0{user}"
    if sticky != "request" and principal:
        return f"key\0{principal}"
    return f"request\0{request_id}"


def unit_hash(name: str, purpose: str, unit: str) -> int:
    """64 bits of `unit`, independent between names and purposes."""
    message = f"{name}\0{purpose}\0{unit}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(message, digest_size=8, person=b"rollout-v1")
    return int.from_bytes(digest.digest(), "big")


def uniform(bits: int) -> float:
    """64 bits as a number strictly between 0 and 1."""
    return ((bits >> 12) + 0.5) / (1 << 52)


def weighted_choice(name: str, rule: Weights, unit: str) -> str:
    """The version of a unit; all of a stable function of name, versions, weights and unit."""
    best, best_score = "", -math.inf
    for version, weight in rule.weights.items():
        if weight <= 0:
            continue
        # -log(u)/w is exponential with rate w; the least one wins with probability w / sum(w).
        score = math.log(uniform(unit_hash(name, f"version\0{version}", unit))) / weight
        if score > best_score or (score == best_score and version < best):
            best, best_score = version, score
    return best


def route(name: str, rule: Traffic, unit: str, *, percent: float = 0.0, step: int = -1) -> Choice:
    """The choice for one request.

    Args:
        name: of the model; the same unit is drawn independently for other names.
        rule: the name's rule.
        unit: see `unit_of`.
        percent: the canary's present share; `Rollout.route` gives it.
        step: the rollout's present step.
    """
    match rule:
        case Single():
            return Choice(rule.version)
        case Weights():
            return Choice(weighted_choice(name, rule, unit), unit=unit_hash(name, "unit", unit))
        case Canary():
            bits = unit_hash(name, f"canary\0{rule.canary}", unit)
            canary = uniform(bits) * 100 < percent
            return Choice(rule.canary if canary else rule.stable, step=step, unit=bits)
        case Shadow():
            bits = unit_hash(name, f"shadow\0{rule.shadow}", unit)
            copied = uniform(bits) < rule.fraction
            return Choice(rule.version, rule.shadow if copied else None, unit=bits)
