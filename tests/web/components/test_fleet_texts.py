"""Texts about the fleet."""

import pytest

from web.components.fleet_texts import ratio_note, ratio_tone
from web.history.capacity import FleetPoint


@pytest.mark.parametrize(
    ("ratio", "tone", "words"),
    [(0.97, "bad", "Below demand"), (1.04, "good", "Right-sized"), (1.4, "warn", "Unused capacity")],
)
def test_the_size_is_judged_by_the_ratio_of_the_sizer(ratio: float, tone: str, words: str) -> None:
    below_demand_at_the_last_tick = FleetPoint(demand=10.0, ordered=9.0, low=10.0, high=13.0, ratio=ratio)
    assert ratio_tone(below_demand_at_the_last_tick) == tone
    assert ratio_note(below_demand_at_the_last_tick) == f"{words}: now 9.00 for 10.0 groups/s"


def test_a_size_without_demand_is_not_judged() -> None:
    assert ratio_tone(FleetPoint()) == ""
    assert "Not measured yet" in ratio_note(FleetPoint())
