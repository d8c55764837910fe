"""What a node's links brought, source by source."""

from dataclasses import replace

from astraflow.raas.engines.base import EngineLoad
from astraflow.raas.links import Links
from astraflow.weights.origins import Origin
from tests.raas.test_weight_loop import stats


def test_what_came_adds_up_by_source_and_the_latest_is_kept_apart() -> None:
    mirror, store = Origin("mirror:1", ()), Origin("store:1", ())
    links = Links(lambda: (mirror, store))
    mirror.failed(0.0)
    links.pulled(replace(stats(0, None), origin="store:1"))
    links.pulled(replace(stats(3, 0), origin="store:1", behind=3, fetch_s=0.25, changed_elements=5))
    links.loaded("store:1", EngineLoad(stage_s=0.25, pause_s=0.1, apply_s=0.5, resume_s=0.2))

    unused, used = links.reports()

    assert (unused.source, unused.versions, unused.failures) == ("mirror:1", 0, 1)
    assert (used.source, used.versions, used.failures) == ("store:1", 2, 0)
    assert (used.full_bytes, used.delta_bytes, used.fetch_s) == (100, 10, 1.25)
    assert (used.decode_s, used.stage_s, used.verify_s) == (0.25, 1.25, 0.5)
    assert (used.pause_s, used.apply_s, used.resume_s) == (0.1, 0.5, 0.2)
    assert used.latest_changed_share == 0.1
    assert (used.latest_bytes, used.latest_fetch_s, used.latest_behind) == (10, 0.25, 3)
