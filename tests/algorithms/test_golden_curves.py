"""20 steps under every algorithm give the losses that are checked in: no change of results without notice."""

import json
import math

import pytest

from astraflow.algorithms.base import advantages, token_advantages
from astraflow.algorithms.checks import check_algorithm
from astraflow.algorithms.config import AlgorithmConfig
from astraflow.algorithms.corrections import corrections
from astraflow.algorithms.losses import losses
from tests.algorithms.golden_curves import ALGORITHMS, FILE, curve

STORED = json.loads(FILE.read_text())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_training_curves_match_the_stored_ones(name: str) -> None:
    curves = curve(ALGORITHMS[name])

    for quantity, values in curves.items():
        assert values == pytest.approx(STORED[name][quantity], rel=1e-6, abs=1e-12)
    assert all(map(math.isfinite, curves["loss"]))
    assert curves["grad_norm"][0] > 0


def test_every_example_algorithm_is_valid_and_every_plugin_is_covered() -> None:
    configs = [AlgorithmConfig.parse(algorithm, where="algorithm") for algorithm in ALGORITHMS.values()]
    for config in configs:
        check_algorithm(config)

    assert STORED.keys() == ALGORITHMS.keys()
    assert {c.loss["kind"] for c in configs} | {"critic"} == set(losses.kinds())
    assert {spec["kind"] for c in configs for spec in c.advantages} == set(advantages.kinds())
    assert {spec["kind"] for c in configs for spec in c.token_advantages} == set(token_advantages.kinds())
    used = {spec["kind"] for c in configs for spec in c.loss.get("corrections", ())}
    assert used == set(corrections.kinds())
