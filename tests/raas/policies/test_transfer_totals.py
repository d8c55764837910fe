"""Totals of a node's weight transfers by source."""

from dataclasses import replace

from astraflow.raas.engines.base import LoadTimings
from astraflow.raas.policies.transfer_totals import TransferTotals
from astraflow.weights.transfer.weight_sources import WeightSource
from tests.raas.policies.test_weight_loop import stats


def test_transfers_are_summed_by_source_beside_the_latest_one() -> None:
    mirror, store = WeightSource("mirror:1", ()), WeightSource("store:1", ())
    links = TransferTotals(lambda: (mirror, store))
    mirror.mark_failed(0.0)
    links.record_transfer(replace(stats(0, None), source="store:1"))
    links.record_transfer(replace(stats(3, 0), source="store:1", versions_behind=3, fetch_s=0.25, changed_elements=5))
    links.record_load("store:1", LoadTimings(stage_s=0.25, pause_s=0.1, apply_s=0.5, resume_s=0.2))

    unused, used = links.reports()

    assert (unused.source, unused.versions, unused.failures) == ("mirror:1", 0, 1)
    assert (used.source, used.versions, used.failures) == ("store:1", 2, 0)
    assert (used.full_bytes, used.delta_bytes, used.fetch_s) == (100, 10, 1.25)
    assert (used.decode_s, used.stage_s, used.verify_s) == (0.25, 1.25, 0.5)
    assert (used.pause_s, used.apply_s, used.resume_s) == (0.1, 0.5, 0.2)
    assert used.latest_changed_share == 0.1
    assert (used.latest_bytes, used.latest_fetch_s, used.latest_versions_behind) == (10, 0.25, 3)
