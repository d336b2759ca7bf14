"""`tidemill keys`: API keys in the database, beside a running server or without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemill.base.errors import TidemillError, config_error
from tidemill.cli.acting import JSON, acted, actor, looked, print_table, shown
from tidemill.cli.database import DATABASE
from tidemill.cli.declared import argument, command, option

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from tidemill.server.access.keys import Key
    from tidemill.store.key_values import KeyValues
    from tidemill.store.keys import ImportedKey

_KEY = argument(..., help="The key's name or id.")
_ONCE = "This secret is shown once; nothing can reveal it again."
_CLOSED = "This is the first key: every route but the probes wants a key from now on."
_NEVER = "never"
_ANY = "any"

ROLE = option(None, help="admin, manager, user (default), metrics or auditor.")
EXPIRES = option(None, help="After a duration (90d, 12h), on a date (2027-01-31, UTC), or never.")
MODELS = option((), help="Pattern of models that it may use; repeatable. Default: any.")
ROUTES = option((), help="Pattern of paths that it may call (/v1/chat/*); repeatable.")
ADDRESS = option((), help="Address or network that it may be used from; repeatable.")
MAX_TOKENS = option(None, help="The most tokens that one answer may have.")
PRIORITY = option(None, help="background waits for capacity that no others want, or normal.")
WEIGHT = option(None, help="Share of the engine relative to other clients; default: 1.")
RESIDENCY = option(None, help="Served only by servers with this --region.")
NO_CONTENT = option(
    None,
    "--no-content/--content",
    help="Nothing that its requests say or are answered is kept.",
)
RPM = option(None, help="Requests per minute, or none (docs/quotas.md).")
TPM = option(None, help="Tokens per minute, or none.")


def create(
    name: str = argument(..., help="Unique; it is in logs and metrics."),
    role: str | None = ROLE,
    team: str | None = option(None, help="Its team; default: that of its user, or default."),
    user: str | None = option(None, help="Whom it belongs to; its role is the default then."),
    expires: str | None = EXPIRES,
    models: tuple[str, ...] = MODELS,
    routes: tuple[str, ...] = ROUTES,
    address: tuple[str, ...] = ADDRESS,
    max_tokens: int | None = MAX_TOKENS,
    priority: str | None = PRIORITY,
    weight: float | None = WEIGHT,
    residency: str | None = RESIDENCY,
    no_content: bool | None = NO_CONTENT,
    rpm: str | None = RPM,
    tpm: str | None = TPM,
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """Make a key and print its secret, once.

    A running server takes it within a second or two. With the first key, servers of this database
    require one for every route but the probes.
    """
    from tidemill.store import keys, settings

    values = _values(
        role=role,
        expires=_time(expires),
        models=_list("models", models),
        routes=_list("routes", routes),
        addresses=_list("address", address),
        max_tokens=max_tokens,
        priority=priority,
        weight=weight,
        residency=residency,
        no_content=no_content,
    )
    hasher, who = _hasher(), actor()

    def work(connection: Connection) -> tuple[bool, dict[str, Any]]:
        first = settings.get(connection, settings.KEYS_REQUIRED) is None
        made = keys.create_key(connection, who, hasher, name, values, team=team, user=user)
        return first, {**made, **_limit(connection, made["id"], rpm, tpm)}

    first, made = acted(database, work)
    _print_secret(made, as_json=as_json, first=first)


def list_(
    team: str | None = option(None, help="Only keys of this team."),
    revoked: bool = option(False, "--revoked", help="Also those that were revoked."),
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """List the keys, without their secrets."""
    from tidemill.store import keys

    who = actor()
    found = looked(database, lambda c: keys.list_keys(c, who, team=team, revoked=revoked))
    if as_json:
        click.echo(json.dumps({"keys": found}, ensure_ascii=False, indent=1))
        return
    columns = ("name", "prefix", "role", "team", "user", "state", "expires", "models", "id")
    print_table(columns, found)


def show(name: str = _KEY, as_json: bool = JSON, database: str | None = DATABASE) -> None:
    """Show one key: whose it is, what it may, its own limits, which secrets count."""
    from tidemill.store import keys

    who = actor()
    shown(looked(database, lambda c: keys.describe_key(c, who, name)), as_json=as_json)


def change(
    name: str = _KEY,
    role: str | None = ROLE,
    expires: str | None = EXPIRES,
    models: tuple[str, ...] = option((), help="Patterns instead of those before; any: all models."),
    routes: tuple[str, ...] = option((), help="Patterns instead of those before; any: all."),
    address: tuple[str, ...] = option((), help="Networks instead of those before; any: all."),
    max_tokens: int | None = option(None, help="The most tokens of one answer; 0: no limit."),
    priority: str | None = PRIORITY,
    weight: float | None = WEIGHT,
    residency: str | None = option(None, help="As of create; any: no more."),
    no_content: bool | None = NO_CONTENT,
    disabled: bool | None = option(None, "--disable/--enable", help="Refuse it, or take it again."),
    rpm: str | None = RPM,
    tpm: str | None = TPM,
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """Change what a key may; what is not said stays."""
    from tidemill.store import keys

    values = _values(
        role=role,
        expires=_time(expires),
        models=_list("models", models),
        routes=_list("routes", routes),
        addresses=_list("address", address),
        max_tokens=_or_none(max_tokens, 0),
        priority=priority,
        weight=weight,
        residency=_or_none(residency, _ANY),
        no_content=no_content,
        disabled=disabled,
    )
    who = actor()

    def work(connection: Connection) -> dict[str, Any]:
        found = keys.change_key(connection, who, name, values)
        return {**found, **_limit(connection, found["id"], rpm, tpm)}

    shown(acted(database, work), as_json=as_json)


def rotate(
    name: str = _KEY,
    overlap: str = option("0s", help="How long the secret before still counts: 24h, 7d."),
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """Give a key a new secret and print it, once; its id, limits and usage stay."""
    from tidemill.store import keys

    seconds = int(_duration("overlap", overlap))
    hasher, who = _hasher(), actor()
    made = acted(database, lambda c: keys.rotate_key(c, who, hasher, name, seconds))
    _print_secret(made, as_json=as_json)


def revoke(name: str = _KEY, as_json: bool = JSON, database: str | None = DATABASE) -> None:
    """End a key for good. Running servers refuse it within a second or two."""
    from tidemill.store import keys

    who = actor()
    found = acted(database, lambda c: keys.revoke_key(c, who, name))
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
    else:
        click.echo(f"{found['name']} is revoked")


def import_(
    file: Path = argument(..., help="A key file, as of `serve --api-keys`."),
    team: str | None = option(None, help="Their team; default: default."),
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """Take the keys of a key file over, all or none: their secrets stay what they are."""
    from tidemill.server.access.keys import read_keys
    from tidemill.store import keys, limits

    found, notes = read_keys(file)
    for note in notes:
        click.echo(f"note: {note}", err=True)
    hasher, who = _hasher(), actor()

    def work(connection: Connection) -> list[dict[str, Any]]:
        made = keys.import_keys(connection, who, hasher, [_imported(k) for k in found], team)
        for one, key in zip(made, found, strict=True):
            if key.limits:
                from tidemill.contract.quotas import Level

                limits.set_limits(connection, (Level.KEY, one["id"]), key.limits)
        return made

    made = acted(database, work)
    if as_json:
        click.echo(json.dumps({"keys": made}, ensure_ascii=False))
    else:
        click.echo(f"{len(made)} keys were imported; serve without --api-keys {file} from now on")


def _imported(key: Key) -> ImportedKey:
    from tidemill.store.keys import ImportedKey

    return ImportedKey(name=key.name, sha256=key.digest, role=key.role.value, weight=key.weight)


def _print_secret(made: dict[str, Any], *, as_json: bool, first: bool = False) -> None:
    if as_json:
        click.echo(json.dumps(made, ensure_ascii=False))
    else:
        click.echo(made["key"])
        facts = f"role {made['role']}, team {made['team']}"
        click.echo(f"{made['name']} ({made['id']}), {facts}. {_ONCE}", err=True)
    if first:
        click.echo(_CLOSED, err=True)


def _hasher() -> Any:
    from tidemill.library.home import default_home
    from tidemill.store.secret import KeyHash, read_secret

    return KeyHash(read_secret(default_home()))


def _limit(connection: Connection, key: str, rpm: str | None, tpm: str | None) -> dict[str, Any]:
    """Set what is given; what of a key's facts has changed by it."""
    given = {name: value for name, value in (("rpm", rpm), ("tpm", tpm)) if value is not None}
    if not given:
        return {}
    from tidemill.store.limit_acts import change_limits

    return {"limits": change_limits(connection, actor(), "key", key, given)["limits"]}


_CLEAR = object()


def _values(**given: Any) -> KeyValues:
    """What flags say; absent ones say nothing, and `_CLEAR` says None."""
    from tidemill.store.key_values import KeyValues

    said: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name, value in said.items():
        said[name] = None if value is _CLEAR else value
    return KeyValues(**said)


def _or_none(value: Any, clear: Any) -> Any:
    return _CLEAR if value is not None and value == clear else value


def _list(flag: str, values: tuple[str, ...]) -> Any:
    """Repeated or with commas; ``any`` alone lifts what there was."""
    found = [part.strip() for value in values for part in value.split(",") if part.strip()]
    if found == [_ANY]:
        return _CLEAR
    if _ANY in found:
        raise config_error(flag, f"--{flag} {_ANY} stands alone")
    return found or None


def _time(text: str | None) -> Any:
    """Seconds since the epoch, from a duration or a date."""
    import time
    from datetime import UTC, datetime

    if text is None:
        return None
    if text == _NEVER:
        return _CLEAR
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return int(time.time() + _duration("expires", text))
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def _duration(flag: str, text: str) -> float:
    from tidemill.base.durations import duration_seconds

    days = text.strip().removesuffix("d")
    try:
        found = float(days) * 86400 if days != text.strip() else duration_seconds(text)
    except (ValueError, TidemillError):
        found = None
    if found is None or not 0 <= found < float("inf"):
        raise config_error(flag, f"--{flag} is a duration such as 12h or 90d, not {text!r}")
    return found


keys = click.Group(
    "keys",
    help="API keys in the database: who may use the server, and what (docs/operations.md).",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for _name, _function in (
    *(("create", create), ("list", list_), ("show", show), ("change", change)),
    *(("rotate", rotate), ("revoke", revoke), ("import", import_)),
):
    keys.add_command(command(_name, _function))
