"""What a score is made of, and when it passes."""

import pytest

from maintainer.evals.case import Group
from maintainer.evals.scoring import Score
from maintainer.evals.usage import Use, numbers
from tests.maintainer.evals.parts import duel


def test_numbers_of_tokens_and_ids_are_not_cited() -> None:
    said = "pool-0a1b2c3d lost 2 of 10.5 nodes by plan 01MCC7QSFGY1P04PT17Y59M0GY"
    assert numbers(said) == ["2", "10.5"]


def test_a_score_is_of_all_its_seeds() -> None:
    score = Score(duels=(duel(9.0, seed=1, use=Use(calls=2)), duel(12.0, seed=2, use=Use(calls=3))))
    assert score.ratio == pytest.approx(1.05)
    assert score.worst == pytest.approx(1.2)
    assert score.spread == pytest.approx(0.3 / 2**0.5)
    assert score.use.calls == 5


def test_where_the_rule_is_right_more_than_a_little_is_too_much_and_so_are_flaps() -> None:
    assert Score(duels=(duel(10.1), duel(10.2))).passes
    assert Score(duels=(duel(10.2), duel(10.3))).objections == ("J is 1.025 of the rule's",)
    assert Score(duels=(duel(10.0, flaps=1), duel(9.0))).objections == ("1 extra flaps",)


def test_where_the_rule_is_blind_better_is_better_than_chance() -> None:
    """Costs of 9 and 11 for the rule alone: a mean of two is off by a tenth, whoever plays."""

    def score(*costs: float) -> Score:
        duels = zip(costs, (9.0, 11.0), (1, 2), strict=True)
        return Score(duels=tuple(duel(cost, rule=rule, group=Group.BLIND, seed=seed) for cost, rule, seed in duels))

    assert score(9.0, 11.0).noise == pytest.approx(0.1)
    assert score(8.0, 9.5).passes
    assert score(8.5, 10.5).objections == ("J is 0.949 of the rule's, ±0.100 by chance: not better",)
    assert not score(9.0, 11.0).passes


def test_one_seed_tells_nothing_of_chance() -> None:
    (objection,) = Score(duels=(duel(8.0, group=Group.BLIND),)).objections
    assert objection == "J is 0.800 of the rule's at one seed, which tells nothing of chance"


def test_what_was_cited_and_not_told_is_an_objection() -> None:
    score = Score(duels=(duel(10.0, use=Use(cited=3, cited_wrong=1)), duel(10.0)))
    assert score.objections == ("1 of 3 numbers were not in what it was told",)
