"""The figures and the table of the variants' runs."""

import pytest

from benchmarks.rollout_savings import VARIANTS, Evaluated, SavingsOutcome, equal_steps_table, run_variant, table


def outcome(variant: str, scores: list[float]) -> SavingsOutcome:
    rounds = tuple(Evaluated(version=5 * at, rollouts=1000 * at, score=score) for at, score in enumerate(scores))
    return SavingsOutcome(variant=variant, seed=0, steps=5 * len(scores), seconds=60.0, age=1.5, rounds=rounds)


def test_a_score_counts_once_the_mean_of_three_evaluations_reaches_it() -> None:
    run = outcome("all groups", [0.2, 0.9, 0.4, 0.8, 0.9])

    assert run.rollouts_to(0.5) == 2000
    assert run.rollouts_to(0.6) == 3000
    assert run.rollouts_to(0.8) is None


def test_the_table_has_medians_over_the_runs_that_reached_a_score() -> None:
    runs = [outcome("all groups", [0.75] * 4), outcome("all groups", [0.1] * 6)]

    _, row = table(runs).splitlines()

    assert row.split() == [
        "all",
        "groups",
        "2",
        "25",
        "1.5",
        "2,000",
        "(1/2)",
        "2,000",
        "(1/2)",
        "-",
        "(0/2)",
        "-",
        "(0/2)",
    ]


def test_variants_are_compared_after_steps_that_all_runs_have_made() -> None:
    runs = [outcome("paced", [0.5] * 7), outcome("bound alone", [0.1] * 5), outcome("paced", [0.7] * 9)]

    _, paced, alone = equal_steps_table(runs, parts=2).splitlines()

    assert paced.split() == ["paced", *["0.600", "(0.500", "0.700)"] * 2]
    assert alone.split() == ["bound", "alone", *["0.100", "(0.100)"] * 2]


@pytest.mark.long
def test_a_short_run_of_the_last_variant_is_evaluated() -> None:
    settings = [*VARIANTS["data"]["replay, GRESO"], "stop.steps=6"]

    run = run_variant("reverse", "all of them", settings, 0, limit_s=60)

    assert run.steps >= 6
    assert [part.version for part in run.rounds][:2] == [0, 5]
    assert run.rounds[1].rollouts >= 5 * 32 * 8 // 2
