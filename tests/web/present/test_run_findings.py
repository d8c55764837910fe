"""Titles of a run's charts, from what was recorded."""

from web.present.ladder import Rung, Stretch
from web.present.run_findings import ladder_finding, run_findings


def rung(*lags: int) -> Rung:
    stretches = tuple(Stretch(x=0.0, y=0.0, width=1.0, lag=lag, level="current") for lag in lags)
    return Rung(name="node", stretches=stretches, latest="current")


def test_a_title_says_where_each_number_went() -> None:
    rows = [
        (
            1000.0 + second,
            {
                "reward_average": 0.2 + second / 100,
                "wait": 0.02,
                "loss": 2.0 - second / 50,
                "length": 120.0,
                "kl": 0.01 if second == 5 else 0.002,
            },
        )
        for second in range(50)
    ]

    found = run_findings(rows)

    assert found == {
        "reward": "Reward rose from 0.20 to 0.69 in 49\u202fs",
        "wait": "Fed the whole time",
        "loss": "Loss fell from 1.96 to 1.06",
        "length": "Length of answers is steady at 120 tokens",
        "kl": "KL was 0.01 at most, and is 0.002",
    }


def test_nothing_measured_is_said_too() -> None:
    found = run_findings([(1000.0, {"reward_average": None, "wait": None})])

    assert found["reward"] == "No reward yet"
    assert found["loss"] == "No loss was told"
    assert found["kl"] == "No divergence was told"


def test_the_ladder_says_whether_nodes_kept_up() -> None:
    assert ladder_finding([], 2) == "No node was recorded in this time"
    assert ladder_finding([rung(0, 0), rung(0)], 2) == "Every node served the newest version"
    assert ladder_finding([rung(0, 2), rung(1)], 2) == "No node was more than 2 versions behind; the bound is 2"
    assert ladder_finding([rung(0, 4), rung(1)], 2) == "1 of 2 nodes fell behind the bound of 2"
