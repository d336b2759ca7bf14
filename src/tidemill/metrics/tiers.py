"""Metrics of the tiers below the KV cache: what they gave, and what became of blocks.

A model has them where it has tiers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from tidemill.contract.moves import Tier
from tidemill.contract.wire import EngineStats
from tidemill.metrics.families import samples

_OUTCOMES = {
    "saved": "saved_blocks",
    "brought": "loaded_blocks",
    "damaged": "damaged_blocks",
    "unsaved": "failed_saves",
}


def tier_metrics(of_models: Mapping[str, EngineStats]) -> Iterator[Metric]:
    """The metrics of these models; none where there are no tiers."""
    tiers = [(name, one) for name, stats in of_models.items() for one in stats.tiers]
    if not tiers:
        return
    tokens, blocks = samples("kv_tier_tokens"), samples("kv_tier_blocks")
    nbytes, seconds = samples("kv_tier_brought_bytes"), samples("kv_tier_brought_seconds")
    held, lost = samples("kv_tier_bytes"), samples("kv_tier_lost_blocks")
    for model, one in tiers:
        at = (model, one.tier.value)
        tokens.add_metric(at, one.tokens)
        for outcome, field in _OUTCOMES.items():
            blocks.add_metric((*at, outcome), getattr(one.figures, field))
        nbytes.add_metric(at, one.figures.loaded_bytes)
        seconds.add_metric(at, one.figures.load_seconds)
        held.add_metric(at, one.figures.held_bytes)
    for model in dict.fromkeys(model for model, _ in tiers):
        lost.add_metric((model,), of_models[model].tiers[0].lost_blocks)
    yield from (tokens, blocks, nbytes, seconds, held, lost)
    remote = [(name, one) for name, one in tiers if one.tier is Tier.PEER]
    if remote:
        prefills = samples("remote_prefills")
        for model, one in remote:
            prefills.add_metric((model, "whole"), one.prefills - one.lost_prefills)
            prefills.add_metric((model, "lost"), one.lost_prefills)
        yield prefills
