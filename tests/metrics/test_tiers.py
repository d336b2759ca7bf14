"""Metrics of tiers below the KV cache."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tidemill.contract.moves import Tier, TierFigures, TierStats
from tidemill.contract.wire import EngineStats
from tidemill.metrics.registry import ServerMetrics

ORDER = ("model", "tier", "outcome")


def test_what_tiers_gave() -> None:
    figures = TierFigures(held_bytes=5, saved_blocks=4, loaded_blocks=3, damaged_blocks=1)
    tiers = (
        TierStats(tier=Tier.RAM, figures=TierFigures(), tokens=32, lost_blocks=7),
        TierStats(tier=Tier.DISK, figures=figures, tokens=96, lost_blocks=7),
        TierStats(tier=Tier.PEER, figures=TierFigures(), prefills=5, lost_prefills=2),
    )
    metrics = ServerMetrics()
    metrics.of("m").update_engine(EngineStats(tiers=tiers))
    metrics.of("plain").update_engine(EngineStats())
    found = {
        (one.name, *(one.labels[k] for k in ORDER if k in one.labels)): one.value
        for family in text_string_to_metric_families(metrics.render()[0].decode())
        for one in family.samples
        if "kv_tier" in one.name or "remote" in one.name
    }
    assert found["tidemill_kv_tier_tokens_total", "m", "disk"] == 96
    assert found["tidemill_kv_tier_tokens_total", "m", "ram"] == 32
    assert found["tidemill_kv_tier_blocks_total", "m", "disk", "damaged"] == 1
    assert found["tidemill_kv_tier_blocks_total", "m", "disk", "brought"] == 3
    assert found["tidemill_kv_tier_bytes", "m", "disk"] == 5
    assert found["tidemill_kv_tier_lost_blocks_total", "m"] == 7
    assert found["tidemill_remote_prefills_total", "m", "whole"] == 3
    assert found["tidemill_remote_prefills_total", "m", "lost"] == 2
    assert not any("plain" in key for key in found)
