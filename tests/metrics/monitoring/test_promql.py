"""PromQL is of metrics and labels that exist."""

from __future__ import annotations

import pytest

from tidemill.metrics.monitoring.promql import Scope, ratio

SCOPE = Scope('instance=~"$instance"', 'model=~"$model"', "5m")


def test_expressions() -> None:
    matchers = 'instance=~"$instance",model=~"$model"'
    assert SCOPE.rate("preemptions") == (
        f"sum by (model) (rate(tidemill_preemptions_total{{{matchers}}}[5m]))"
    )
    assert Scope("", "", "1m").quantile(0.5, "ttft_seconds", ()) == (
        "histogram_quantile(0.5, sum by (le) (rate(tidemill_ttft_seconds_bucket[1m])))"
    )
    # A metric without models is not matched by them.
    assert SCOPE.rate("http_responses", (), {"status": "5.."}) == (
        'sum(rate(tidemill_http_responses_total{instance=~"$instance",status=~"5.."}[5m]))'
    )
    assert ratio("a", "b") == "a / (b > 0)"


def test_what_does_not_exist_cannot_be_asked_for() -> None:
    with pytest.raises(KeyError):
        SCOPE.rate("ttft")
    with pytest.raises(KeyError, match="has no label colour"):
        SCOPE.rate("requests", ("colour",))
    with pytest.raises(KeyError, match="has no label tenant"):
        SCOPE.gauge("queue_tokens", matches={"tenant": "x"})
    with pytest.raises(KeyError, match="is a histogram"):
        SCOPE.rate("ttft_seconds")
