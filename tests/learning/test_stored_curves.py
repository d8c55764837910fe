"""The run doctor finds nothing in the stored curves of our recipes, which reached their goals.

Stored are the rewards of the nine tiny recipes and of `smollm` with LoRA, each with three seeds (docs/recipes/images),
as means of five steps: checks that need other metrics see none, and differences look clearer than they are.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from astraflow.learning.examine import examine
from astraflow.learning.facts import ENOUGH_STEPS, LearningFacts
from tests.learning.seeded_runs import POLICY, steps_of

IMAGES = Path(__file__).parents[2] / "docs" / "recipes" / "images"
RECIPES = (
    "alfworld",
    "code",
    "math",
    "math_multi_agent",
    "reasoning_gym",
    "search",
    "textcraft",
    "tool_use",
    "webshop",
)
_LINE = re.compile(r'<polyline points="([^"]+)"')
_GRID = re.compile(r'y1="([\d.]+)" y2="[\d.]+" stroke="#dddddd"/>\n<text[^>]*text-anchor="end">([-\d.]+)</text>')


def curves(path: Path) -> list[np.ndarray]:
    """Returns the rewards of each line of a plot."""
    text = path.read_text()
    (low_y, low), (high_y, high) = (
        (float(y), float(value)) for y, value in (lambda g: (g[0], g[-1]))(_GRID.findall(text))
    )
    lines = [[float(point.split(",")[1]) for point in points.split()] for points in _LINE.findall(text)]
    return [low + (np.array(line) - low_y) * (high - low) / (high_y - low_y) for line in lines]


@pytest.fixture(scope="module")
def stored() -> dict[str, list[np.ndarray]]:
    """Curves with enough steps to be judged, by plot."""
    names = [*(f"{name}-tiny" for name in RECIPES), "smollm-lora"]
    by_plot = {name: curves(IMAGES / f"{name}.svg") for name in names}
    return {name: [line for line in lines if len(line) >= ENOUGH_STEPS] for name, lines in by_plot.items()}


def test_at_most_one_of_twenty_stored_curves_has_a_fault(stored: dict[str, list[np.ndarray]]) -> None:
    faults = {
        (name, number): [
            record.cause for record in examine(LearningFacts(policy=POLICY, steps=steps_of(line, {}), others={}))
        ]
        for name, lines in stored.items()
        for number, line in enumerate(lines)
    }
    assert len(faults) >= 20
    wrong = {key: causes for key, causes in faults.items() if causes}
    assert len(wrong) <= len(faults) / 20, wrong


def test_a_stored_curve_that_is_turned_around_has_a_fault(stored: dict[str, list[np.ndarray]]) -> None:
    turned = [line[::-1] for lines in stored.values() for line in lines]
    fallen = [
        line
        for line in turned
        if "reward_fell"
        in {record.cause for record in examine(LearningFacts(policy=POLICY, steps=steps_of(line, {}), others={}))}
    ]
    assert len(fallen) >= 0.9 * len(turned)
