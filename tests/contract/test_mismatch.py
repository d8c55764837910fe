"""The cause of a mismatch follows from measurements, and its text names figures, precisions and what to do."""

from typing import Any

import pytest

from astraflow.contract.mismatch import mismatch_cause
from astraflow.contract.record_causes import CAUSES
from astraflow.contract.records import fill

ROUNDED = {"mismatch_k3": 0.05, "mismatch_cut": 0.02, "mismatch_mass": 0.99, "mismatch_one_sided": 0.1}
FILTERED = {"mismatch_k3": 0.05, "mismatch_cut": 0.0, "mismatch_mass": 0.87, "mismatch_one_sided": 0.99}


@pytest.mark.parametrize(
    ("metrics", "probe", "cause", "named"),
    [
        (FILTERED, 1e-6, "mismatch_filtered", "87%"),
        (FILTERED, None, "mismatch_filtered", "`support`"),
        (ROUNDED, 1.3, "mismatch_coarse", "1.3 nats on the probe, engines in weights of few bits, trainer in float32"),
        (ROUNDED, 1.3, "mismatch_coarse", "`centering = 8` (column `top_tokens`)"),
        (ROUNDED, 0.1, "mismatch_sampled", "within 0.1 nats"),
        (ROUNDED | {"balance_loss": 2.0}, 1.3, "mismatch_routed", "`expert_sets`"),
        (ROUNDED | {"balance_loss": 2.0, "changed_experts": 0.1}, 1.3, "mismatch_coarse", "1.3 nats on the probe"),
        (ROUNDED, None, "mismatch_unexplained", "2% of them"),
        ({"mismatch_k3": 0.05}, None, "mismatch_unexplained", "0.05 nats"),
    ],
)
def test_each_cause_is_told_from_what_was_measured(
    metrics: dict[str, float], probe: float | None, cause: str, named: str
) -> None:
    word, values = mismatch_cause(metrics, probe=probe, engines="weights of few bits", trainer="float32")

    text = fill(CAUSES[word], values)
    assert word == cause
    assert named in text
    assert "?" not in text


@pytest.mark.parametrize("precisions", [{}, {"engines": "16 bits"}])
def test_a_cause_leaves_out_precisions_that_are_not_known(precisions: dict[str, Any]) -> None:
    cause, values = mismatch_cause(ROUNDED, probe=1.3, **precisions)

    text = fill(CAUSES[cause], values)
    assert "trainer in" not in text
    assert ("engines in 16 bits" in text) == bool(precisions)
