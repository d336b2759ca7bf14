"""PromQL of metrics that exist: every name and label is looked up in the table of metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidemill.metrics.families import FAMILIES, Family, Kind

_NO_MATCHES: Mapping[str, str] = {}


class Scope(NamedTuple):
    """What all expressions of a document have in common.

    Attributes:
        instances: matcher of `instance`; empty: all.
        models: matcher of `model`, for metrics that have it; empty: all.
        window: that rates are of.
    """

    instances: str
    models: str
    window: str

    def matchers(self, family: Family, matches: Mapping[str, str]) -> str:
        """Matchers of one metric, in braces."""
        found = [self.instances, self.models if "model" in family.labels else ""]
        for label, value in matches.items():
            if label not in family.labels:
                raise KeyError(f"{family.name} has no label {label}")
            found.append(f'{label}=~"{value}"')
        shown = ",".join(one for one in found if one)
        return f"{{{shown}}}" if shown else ""

    def rate(
        self,
        name: str,
        by: Sequence[str] = ("model",),
        matches: Mapping[str, str] = _NO_MATCHES,
        part: str = "",
    ) -> str:
        """Per second: of a counter, or of a histogram's `part` (``sum``, ``count``)."""
        family = _of(name, Kind.HISTOGRAM if part else Kind.COUNTER)
        series = f"{family.full}{f'_{part}' if part else ''}{self.matchers(family, matches)}"
        return f"sum{_by(family, by)}(rate({series}[{self.window}]))"

    def increase(
        self,
        name: str,
        window: str,
        by: Sequence[str] = ("model",),
        matches: Mapping[str, str] = _NO_MATCHES,
    ) -> str:
        """Of a counter within a window."""
        family = _of(name, Kind.COUNTER)
        series = f"{family.full}{self.matchers(family, matches)}"
        return f"sum{_by(family, by)}(increase({series}[{window}]))"

    def gauge(
        self,
        name: str,
        by: Sequence[str] = ("model",),
        matches: Mapping[str, str] = _NO_MATCHES,
        how: str = "sum",
    ) -> str:
        """A gauge over all servers, summed or otherwise."""
        family = _of(name, Kind.GAUGE)
        return f"{how}{_by(family, by)}({family.full}{self.matchers(family, matches)})"

    def quantile(
        self,
        q: float,
        name: str,
        by: Sequence[str] = ("model",),
        matches: Mapping[str, str] = _NO_MATCHES,
    ) -> str:
        """Of a histogram."""
        family = _of(name, Kind.HISTOGRAM)
        series = f"{family.full}_bucket{self.matchers(family, matches)}"
        inner = f"sum{_by(family, by, 'le')}(rate({series}[{self.window}]))"
        return f"histogram_quantile({q:g}, {inner})"

    def mean(self, name: str, by: Sequence[str] = ("model",)) -> str:
        """Of a histogram's observations."""
        return ratio(self.rate(name, by, part="sum"), self.rate(name, by, part="count"))


def ratio(one: str, other: str) -> str:
    """The quotient; where the other is 0 there is none."""
    return f"{one} / ({other} > 0)"


def _of(name: str, kind: Kind) -> Family:
    family = FAMILIES[name]
    if family.kind is not kind:
        raise KeyError(f"{name} is a {family.kind}")
    return family


def _by(family: Family, labels: Sequence[str], *more: str) -> str:
    for label in labels:
        if label not in (*family.labels, "instance"):
            raise KeyError(f"{family.name} has no label {label}")
    return f" by ({', '.join((*labels, *more))}) " if (labels or more) else ""
