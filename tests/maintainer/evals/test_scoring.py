"""Components of a score, and when it passes."""

import pytest

from maintainer.evals.cases import Group
from maintainer.evals.scoring.scoring import Score
from maintainer.evals.scoring.usage import MaintainerUse, numbers
from tests.maintainer.evals.parts import paired_result


def test_digits_in_tokens_and_ids_are_not_cited_numbers() -> None:
    text = "pool-0a1b2c3d lost 2 of 10.5 nodes by plan 01MCC7QSFGY1P04PT17Y59M0GY"
    assert numbers(text) == ["2", "10.5"]


def test_a_score_averages_all_its_seeds() -> None:
    score = Score(
        paired_results=(
            paired_result(9.0, seed=1, use=MaintainerUse(calls=2)),
            paired_result(12.0, seed=2, use=MaintainerUse(calls=3)),
        )
    )
    assert score.ratio == pytest.approx(1.05)
    assert score.worst == pytest.approx(1.2)
    assert score.spread == pytest.approx(0.3 / 2**0.5)
    assert score.use.calls == 5


def test_where_the_rule_is_right_a_higher_cost_and_extra_flaps_are_objections() -> None:
    assert Score(paired_results=(paired_result(10.1), paired_result(10.2))).passes
    (dearer,) = Score(paired_results=(paired_result(10.2), paired_result(10.3))).objections
    assert "1.025" in dearer
    assert Score(paired_results=(paired_result(10.0, flaps=1), paired_result(9.0))).objections == ("1 extra flaps",)


def test_where_the_rule_is_blind_passing_needs_a_cost_below_the_noise() -> None:
    """The rule alone costs 9 and 11: the noise of a mean of two is a tenth for every model."""

    def score(*costs: float) -> Score:
        paired_results = zip(costs, (9.0, 11.0), (1, 2), strict=True)
        return Score(
            paired_results=tuple(
                paired_result(cost, rule=rule, group=Group.BLIND, seed=seed) for cost, rule, seed in paired_results
            )
        )

    assert score(9.0, 11.0).noise == pytest.approx(0.1)
    assert score(8.0, 9.5).passes
    (objection,) = score(8.5, 10.5).objections
    assert "0.949" in objection
    assert "±0.100" in objection
    assert not score(9.0, 11.0).passes


def test_one_seed_does_not_show_the_noise() -> None:
    (objection,) = Score(paired_results=(paired_result(8.0, group=Group.BLIND),)).objections
    assert "0.800" in objection


def test_a_cited_number_without_a_source_is_an_objection() -> None:
    score = Score(paired_results=(paired_result(10.0, use=MaintainerUse(cited=3, cited_wrong=1)), paired_result(10.0)))
    (objection,) = score.objections
    assert objection.startswith("1 of 3 cited")
