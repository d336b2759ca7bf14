"""A plan's picture: time per token against throughput, with intervals and the objective's line."""

from __future__ import annotations

import math
from html import escape

from tidemill.planning.predict import Point, Prediction

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 24, 64, 56
_GRID, _TEXT, _LINE, _BAND, _LIMIT = "#e4e7eb", "#52606d", "#03449e", "#9fb3c8", "#ba2525"


class _Axis:
    """A logarithmic axis: `at` maps values to pixels."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self.low, self.high = math.log10(low), math.log10(high)
        self._begin, self._end = begin, end

    def at(self, value: float) -> float:
        """The pixel of a value above 0."""
        share = (math.log10(value) - self.low) / max(self.high - self.low, 1e-9)
        return self._begin + share * (self._end - self._begin)

    def ticks(self) -> list[float]:
        """1, 2 and 5 times powers of ten within the axis."""
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        values = (step * 10.0**power for power in powers for step in (1, 2, 5))
        return [v for v in values if self.low - 1e-9 <= math.log10(v) <= self.high + 1e-9]


def svg(prediction: Prediction, title: str) -> str:
    """The picture, as a document of its own."""
    points = prediction.points
    limit = prediction.objectives.get("tpot")
    x = _axis([b for p in points for b in _rates(p)], _LEFT, _WIDTH - _RIGHT)
    y = _axis(
        [b for p in points for b in _times(p)] + ([limit] if limit else []),
        _HEIGHT - _BOTTOM, _TOP,
    )  # fmt: skip
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="12" y="22" font-size="14" font-weight="bold">{escape(title)}</text>',
        f'<text x="12" y="40" fill="{_TEXT}">{prediction.prompt} tokens in, '
        f"{prediction.output} out; numbers at points are streams</text>",
        *_grid(x, y),
        *(_interval(point, x, y) for point in points),
        _curve(points, x, y),
        *(_dot(point, x, y) for point in points),
    ]
    if limit:
        height = y.at(limit)
        parts.append(
            f'<path d="M{_LEFT} {height:.1f}H{_WIDTH - _RIGHT}" stroke="{_LIMIT}" '
            f'stroke-dasharray="6 4"/><text x="{_WIDTH - _RIGHT}" y="{height - 5:.1f}" '
            f'text-anchor="end" fill="{_LIMIT}">objective: {limit:g} ms per token</text>'
        )
    return "\n".join((*parts, "</svg>", ""))


def _axis(values: list[float], begin: float, end: float) -> _Axis:
    return _Axis(min(values) / 1.15, max(values) * 1.15, begin, end)


def _rates(point: Point) -> tuple[float, float]:
    return point.output_tokens_per_second.low, point.output_tokens_per_second.high


def _times(point: Point) -> tuple[float, float]:
    return point.tpot_ms.low, point.tpot_ms.high


def _grid(x: _Axis, y: _Axis) -> list[str]:
    parts = []
    for value in x.ticks():
        at = x.at(value)
        parts.append(
            f'<path d="M{at:.1f} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="{_GRID}"/>'
            f'<text x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle" '
            f'fill="{_TEXT}">{value:g}</text>'
        )
    for value in y.ticks():
        at = y.at(value)
        parts.append(
            f'<path d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}" stroke="{_GRID}"/>'
            f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end" '
            f'fill="{_TEXT}">{value:g}</text>'
        )
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" y="{_HEIGHT - 14}" text-anchor="middle" '
        f'fill="{_TEXT}">output tokens per second</text>'
        f'<text transform="translate(16 {middle:.0f}) rotate(-90)" text-anchor="middle" '
        f'fill="{_TEXT}">milliseconds per token</text>'
    )
    return parts


def _interval(point: Point, x: _Axis, y: _Axis) -> str:
    (left, right), (low, high) = _rates(point), _times(point)
    across, up = x.at(point.output_tokens_per_second.value), y.at(point.tpot_ms.value)
    return (
        f'<path d="M{x.at(left):.1f} {up:.1f}H{x.at(right):.1f}M{across:.1f} {y.at(low):.1f}'
        f'V{y.at(high):.1f}" stroke="{_BAND}"/>'
    )


def _curve(points: tuple[Point, ...], x: _Axis, y: _Axis) -> str:
    places = (
        f"{x.at(p.output_tokens_per_second.value):.1f} {y.at(p.tpot_ms.value):.1f}" for p in points
    )
    return f'<path d="M{"L".join(places)}" fill="none" stroke="{_LINE}"/>'


def _dot(point: Point, x: _Axis, y: _Axis) -> str:
    across, up = x.at(point.output_tokens_per_second.value), y.at(point.tpot_ms.value)
    fill = "#ffffff" if point.meets is False else _LINE
    return (
        f'<circle cx="{across:.1f}" cy="{up:.1f}" r="4" fill="{fill}" stroke="{_LINE}">'
        f"<title>{point.concurrency} streams: {point.output_tokens_per_second.value:.4g} tokens/s, "
        f"{point.tpot_ms.value:.4g} ms per token, first token after {point.ttft_ms.value:.4g} ms"
        f'</title></circle><text x="{across + 7:.1f}" y="{up - 7:.1f}">{point.concurrency}</text>'
    )
