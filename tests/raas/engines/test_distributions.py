import random
from typing import Literal

import pytest

from astraflow.raas.engines.scripted import Distribution


@pytest.mark.parametrize("kind", ["constant", "uniform", "exponential", "lognormal"])
def test_the_sample_mean_matches_the_configured_mean(
    kind: Literal["constant", "uniform", "exponential", "lognormal"],
) -> None:
    source = random.Random(1)

    drawn = [Distribution(kind=kind, mean=3.0, spread=0.8).draw(source) for _ in range(20_000)]

    assert sum(drawn) / len(drawn) == pytest.approx(3.0, rel=0.05)
    assert min(drawn) >= 0
    assert Distribution(kind=kind, mean=0.0).draw(source) == 0
