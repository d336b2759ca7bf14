"""GET /v1/organization/usage/completions, .../embeddings and /v1/organization/costs.

A project is a team here. Usage is kept by hour, so that buckets are hours or days.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import wall
from tidemill.base.errors import bad_request
from tidemill.contract.prices import NANO
from tidemill.server.access.auth import principal_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.dialect import Endpoint
from tidemill.server.dialects.query import number
from tidemill.server.transport.pieces import json_response
from tidemill.server.usage import READERS, narrowed, read

if TYPE_CHECKING:
    from tidemill.store.usage import UsageRow

_HOUR, _DAY = 3600, 86400
# Width of a bucket -> its seconds, and how many a page has by default and at most.
_WIDTHS = {"1h": (_HOUR, 24, 168), "1d": (_DAY, 7, 31)}
_COSTS = {"1d": (_DAY, 7, 180)}

# Name of a group or filter -> dimension of the store, and the filter's parameter.
_GROUPS = {
    "project_id": ("team", "project_ids"),
    "user_id": ("user", "user_ids"),
    "api_key_id": ("key", "api_key_ids"),
    "model": ("model", "models"),
}
_FILTERS = {"team": "teams", "user": "users", "key": "keys", "model": "models"}


async def completions_usage(context: ServerContext, request: Request) -> Response:
    """Tokens and requests of generated answers, by hour or day."""

    def result(row: UsageRow, groups: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "object": "organization.usage.completions.result",
            "input_tokens": row.prompt,
            "output_tokens": row.generated,
            "input_cached_tokens": row.cached,
            "input_audio_tokens": 0,
            "output_audio_tokens": 0,
            "num_model_requests": row.requests,
            **groups,
            "batch": None,
            "service_tier": None,
        }

    page = _Page(request, _WIDTHS, _GROUPS, operations=("generate",))
    return json_response(await page.document(context, result))


async def embeddings_usage(context: ServerContext, request: Request) -> Response:
    """Tokens and requests of embeddings and scores, by hour or day."""

    def result(row: UsageRow, groups: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "object": "organization.usage.embeddings.result",
            "input_tokens": row.prompt,
            "num_model_requests": row.requests,
            **groups,
        }

    page = _Page(request, _WIDTHS, _GROUPS, operations=("embed", "score"))
    return json_response(await page.document(context, result))


async def costs(context: ServerContext, request: Request) -> Response:
    """Money by day."""
    prices = context.recording.prices if context.recording is not None else None
    currency = "usd" if prices is None else prices.currency.lower()

    def result(row: UsageRow, groups: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "object": "organization.costs.result",
            "amount": {"value": row.cost / NANO, "currency": currency},
            "line_item": groups["model"],
            "project_id": groups["project_id"],
        }

    groups = {"project_id": _GROUPS["project_id"], "line_item": ("model", "")}
    page = _Page(request, _COSTS, groups)
    return json_response(await page.document(context, result))


class _Page:
    """One page of buckets.

    Args:
        request: with the parameters.
        widths: of buckets.
        groups: that may be told apart, see `_GROUPS`.
        operations: that count; None: all.

    Raises:
        TidemillError: kind BAD_REQUEST naming the parameter.
    """

    def __init__(
        self,
        request: Request,
        widths: Mapping[str, tuple[int, int, int]],
        groups: Mapping[str, tuple[str, str]],
        operations: tuple[str, ...] | None = None,
    ) -> None:
        given = request.query_params
        width = given.get("bucket_width", "1d")
        if width not in widths:
            raise bad_request(
                "bucket_width",
                f"bucket_width must be {' or '.join(widths)} here: usage is kept by hour",
            )
        self._width, default, most = widths[width]
        self._limit = number(request, "limit", 1, most) or default
        start = _second(given.get("page") or given.get("start_time"), "start_time")
        self._start = start // self._width * self._width
        end = given.get("end_time")
        self._end = int(wall()) + 1 if end is None else _second(end, "end_time")
        self._dimension = "hour" if self._width == _HOUR else "day"
        self._groups = {}
        for name in _several(given, "group_by"):
            if name not in groups:
                raise bad_request("group_by", f"group_by takes {', '.join(groups)}")
            self._groups[name] = groups[name][0]
        self._chosen = {
            dimension: ids
            for dimension, parameter in groups.values()
            if parameter and (ids := _several(given, parameter))
        }
        self._operations = operations
        self._principal = principal_of(request)

    async def document(self, context: ServerContext, result: Any) -> dict[str, Any]:
        """The page as OpenAI has it."""
        from tidemill.store.usage import Query, usage

        until = min(self._end, self._start + self._limit * self._width)
        query = narrowed(
            Query(
                since=self._start,
                until=until,
                by=(self._dimension, *self._groups.values()),
                operations=self._operations,
                **{_FILTERS[name]: ids for name, ids in self._chosen.items()},
            ),
            self._principal,
        )
        rows: list[UsageRow] = await read(context, lambda connection: usage(connection, query))
        by_time: dict[int, list[dict[str, Any]]] = {}
        for row in rows:
            if not row.requests:  # refused ones alone
                continue
            shown = {name: self._value(row, name) for name in _GROUPS}
            by_time.setdefault(row.group[self._dimension], []).append(result(row, shown))
        buckets = []
        for start in range(self._start, until, self._width):
            end = start + self._width
            results = by_time.get(start, [])
            buckets.append(
                {"object": "bucket", "start_time": start, "end_time": end, "results": results}
            )
        more = until < self._end
        return {
            "object": "page",
            "data": buckets,
            "has_more": more,
            "next_page": f"page_{until}" if more else None,
        }

    def _value(self, row: UsageRow, name: str) -> Any:
        dimension = _GROUPS[name][0]
        if dimension not in self._groups.values():
            return None
        return row.group[dimension] or None


def _second(text: str | None, name: str) -> int:
    text = (text or "").removeprefix("page_")
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise bad_request(name, f"{name} must be a time in seconds since 1970")
    return int(text)


def _several(given: Any, name: str) -> tuple[str, ...]:
    """A parameter that may be repeated, as ``name=a&name=b`` or ``name[]=a``, or by commas."""
    values: Sequence[str] = [*given.getlist(name), *given.getlist(f"{name}[]")]
    found = (part for value in values for part in value.split(",") if part)
    return tuple(dict.fromkeys(found))


ENDPOINTS = (
    Endpoint("GET", "/v1/organization/usage/completions", completions_usage, roles=READERS),
    Endpoint("GET", "/v1/organization/usage/embeddings", embeddings_usage, roles=READERS),
    Endpoint("GET", "/v1/organization/costs", costs, roles=READERS),
)
