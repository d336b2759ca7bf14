"""`tidemill rollout`: the versions of a name, and the traffic among them, on a running server."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import click

from tidemill.base.errors import config_error
from tidemill.cli.declared import argument, command, option
from tidemill.cli.server_client import API_KEY, URL, ServerClient

_PATH = "/admin/rollouts"
_BOUND = " (default: {}; off leaves it out)"


def start(
    name: str = argument(..., help="The name that clients use."),
    to: str = option(..., help="The new version."),
    stable: str | None = option(
        None, help="The version that it is compared with. Default: the one that answers now."
    ),
    shadow: bool = option(
        False, "--shadow", help="Only copies of requests, whose answers are thrown away."
    ),
    fraction: float | None = option(
        None, help="Of a shadow: the share of the requests that is copied (default: 0.1)."
    ),
    while_busy: bool = option(
        False, "--while-busy", help="Of a shadow: copies also run while requests are answered."
    ),
    share: float | None = option(
        None, help="A fixed percentage instead of steps (A/B); users keep their version."
    ),
    steps: str | None = option(None, help="Percentages, such as 1,5,25,50 (the default)."),
    observations: int | None = option(
        None, help="Requests of the new version that each step waits for (default: 100)."
    ),
    seconds: float | None = option(None, help="The least duration of a step (default: 300)."),
    max_errors: str | None = option(
        None, help="Rise of the error rate, absolute" + _BOUND.format(0.01)
    ),
    max_ttft: str | None = option(
        None, help="Relative rise of the time to the first token" + _BOUND.format(0.15)
    ),
    max_itl: str | None = option(
        None, help="Relative rise of the inter-token latency" + _BOUND.format(0.15)
    ),
    max_itl_p95: str | None = option(
        None, help="Relative rise of its 95th percentile (default: off)."
    ),
    max_shorter: str | None = option(
        None, help="Relative fall of the length of answers" + _BOUND.format(0.2)
    ),
    max_longer: str | None = option(
        None, help="Relative rise of the length of answers" + _BOUND.format(0.3)
    ),
    alpha: float | None = option(
        None, help="Probability of a wrong rollback, and of a wrong promotion (default: 0.05)."
    ),
    sticky: str | None = option(
        None, help="What keeps its version.", choices=("request", "key", "user")
    ),
    min_units: int | None = option(
        None, help="Keys or users that the new version must have answered (default: 50)."
    ),
    max_seconds: float | None = option(
        None, help="Roll back what is still undecided then (default: never)."
    ),
    url: str = URL,
    api_key: str | None = API_KEY,
) -> None:
    """Give a version of NAME traffic: in steps that go on by themselves, until it is promoted or
    rolled back."""
    bounds = {
        "errors": max_errors,
        "ttft": max_ttft,
        "itl": max_itl,
        "itl_p95": max_itl_p95,
        "shorter": max_shorter,
        "longer": max_longer,
    }
    rule = {
        "stable": stable,
        "steps": None if steps is None else _numbers("steps", steps),
        "observations": observations,
        "seconds": seconds,
        "bounds": {key: _bound(key, text) for key, text in bounds.items() if text} or None,
        "alpha": alpha,
        "sticky": sticky,
        "min_units": min_units,
        "max_seconds": max_seconds,
    }
    given: dict[str, Any] = {key: value for key, value in rule.items() if value is not None}
    client = ServerClient(url, api_key)
    if not shadow and (fraction is not None or while_busy):
        raise config_error("shadow", "--fraction and --while-busy are options of --shadow")
    if shadow or share is not None:
        allowed = {"stable"} if shadow else {"stable", "sticky"}
        wrong = {*given} - allowed
        if shadow and share is not None:
            wrong.add("share")
        if wrong:
            flag = min(wrong).replace("_", "-")
            flag = "max-..." if flag == "bounds" else flag
            kind = "--shadow" if shadow else "--share"
            raise config_error(flag, f"--{flag} does not go with {kind}; leave one out")
        old = stable or _stable(client.get(f"{_PATH}/{quote(name)}"))
        traffic: dict[str, Any]
        if shadow:
            traffic = {"kind": "shadow", "version": old, "shadow": to, "while_busy": while_busy}
            if fraction is not None:
                traffic["fraction"] = fraction
        else:
            assert share is not None
            traffic = {"kind": "weights", "weights": {old: 100 - share, to: share}}
            if sticky is not None:
                traffic["sticky"] = sticky
        found = client.post(_PATH, {"name": name, "traffic": traffic})
    else:
        found = client.post(_PATH, {"name": name, "to": to, **given})
    click.echo(_text(found))


def status(
    name: str | None = argument(None, help="The name that clients use. Default: all."),
    as_json: bool = option(False, "--json", help="As JSON."),
    url: str = URL,
    api_key: str | None = API_KEY,
) -> None:
    """Show how the traffic of names with versions is divided, and how the versions compare."""
    client = ServerClient(url, api_key)
    if name is None:
        document = client.get(_PATH)
        found = document["rollouts"]
    else:
        document = client.get(f"{_PATH}/{quote(name)}")
        found = [document]
    if as_json:
        click.echo(json.dumps(document, ensure_ascii=False, indent=1))
    else:
        click.echo("\n\n".join(map(_text, found)) or "no name of this server has versions")


def promote(
    name: str = argument(..., help="The name that clients use."),
    url: str = URL,
    api_key: str | None = API_KEY,
) -> None:
    """End a rollout with all traffic to the new version, whatever the evidence."""
    click.echo(_text(ServerClient(url, api_key).post(f"{_PATH}/{quote(name)}/promote")))


def abort(
    name: str = argument(..., help="The name that clients use."),
    url: str = URL,
    api_key: str | None = API_KEY,
) -> None:
    """End a rollout, an A/B test or a shadow with all traffic to the stable version."""
    click.echo(_text(ServerClient(url, api_key).post(f"{_PATH}/{quote(name)}/abort")))


def _numbers(flag: str, text: str) -> list[float]:
    try:
        return [float(part.strip().removesuffix("%")) for part in text.split(",")]
    except ValueError:
        raise config_error(flag, f"--{flag} is numbers with commas, not {text!r}") from None


def _bound(key: str, text: str) -> float | str:
    flag = f"max-{key.replace('_', '-')}"
    if text == "off":
        return text
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        raise config_error(
            flag, f"--{flag} is a number, a percentage or off, not {text!r}"
        ) from None
    return number / 100 if text.endswith("%") else number


def _stable(document: dict[str, Any]) -> str:
    """The version that answers where no comparison sends a request elsewhere."""
    from tidemill.server.host.rollout.traffic import parse_traffic, versions_of

    return versions_of(parse_traffic(document["traffic"]))[0]


def _text(document: dict[str, Any]) -> str:
    """A name's traffic for a terminal."""
    import msgspec

    from tidemill.server.host.rollout.status import (
        ExperimentStatus,
        RolloutStatus,
        experiment_text,
        status_text,
    )

    name, versions = document["name"], ", ".join(document["versions"])
    lines = []
    if document["experiment"] is not None:
        lines.append(experiment_text(msgspec.convert(document["experiment"], ExperimentStatus)))
    elif document["rollout"] is not None:
        lines.append(status_text(msgspec.convert(document["rollout"], RolloutStatus)))
    if not document["running"]:
        shares = ", ".join(f"{v} {percent:g} %" for v, percent in document["percents"].items())
        lines.insert(0, f"{name}: {shares} (versions: {versions})")
    return "\n".join(lines)


rollout = click.Group(
    "rollout",
    help="Versions of a name on a running server: start, watch, promote or abort a rollout "
    "(docs/rollouts.md).",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for _function in (start, status, promote, abort):
    rollout.add_command(command(_function.__name__, _function))
