"""Rewards that read the text alone: F1, format, overlong, and their weighted sum."""

import asyncio
import math
from typing import Any

import numpy as np
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.rewards import rewards
from astraflow.rewards.base import Reward, Score, score_completion
from astraflow.rewards.rubric import Rubric
from astraflow.runtime.config.base import Config
from astraflow.workflows.base import RewardScorer
from tests import make
from tests.errors import raises_code


def prompt_of(**fields: Any) -> Prompt:
    return Prompt(id=PromptId("p"), fields={"question": "?", **fields})


def score(reward: Reward, prompt: Prompt, completion: str, *, tokens: int | None = None) -> Score:
    return asyncio.run(score_completion(reward, prompt, completion, Finish.STOP, tokens=tokens))


@pytest.mark.parametrize(
    ("answers", "completion", "value"),
    [
        (["Eiffel Tower"], "the eiffel tower!", 1.0),
        (["Eiffel Tower"], "eiffel tower in Paris", 2 * 0.5 * 1 / 1.5),
        (["Eiffel Tower"], "Louvre", 0.0),
        (["Eiffel Tower"], "eiffel eiffel eiffel", 2 / 3),  # sets of words: repetition changes nothing
        (["New York City", "NYC"], "NYC", 0.3),
        (["New York City", "NYC"], "New York City", 1.0),
        (["New York City", "NYC"], "New York", 0.8),
        (["7", "seven"], "", 0.0),
    ],
)
def test_f1_weighs_the_reference_and_its_other_forms(answers: list[str], completion: str, value: float) -> None:
    result = score(rewards.build({"kind": "f1"}), prompt_of(answers=answers), completion)
    assert result.value == pytest.approx(value)


@pytest.mark.parametrize(
    ("completion", "value"),
    [("<answer>NYC</answer>", 0.3), ("<answer>x</answer><answer>New York</answer>", 1.0), ("NYC", 0.0)],
)
def test_exact_match_of_the_last_tag(completion: str, value: float) -> None:
    reward = rewards.build({"kind": "f1", "metric": "exact_match", "tag": "answer"})
    assert score(reward, prompt_of(answers=["new york", "nyc"]), completion).value == pytest.approx(value)


def test_f1_without_a_list_uses_the_only_answer_and_refuses_anything_else() -> None:
    reward = rewards.build({"kind": "f1"})
    assert score(reward, prompt_of(answer="Paris"), "Paris").value == 1
    with raises_code(InvalidInput, "reward.no_answer_list"):
        score(reward, prompt_of(answers=[1]), "Paris")
    with raises_code(InvalidInput, "reward.no_answer_field"):
        score(reward, prompt_of(), "Paris")


@pytest.mark.parametrize(
    ("options", "completion", "value"),
    [
        ({"pattern": r"^\d+$"}, "12", 1),
        ({"pattern": r"^\d+$"}, "a12", 0),
        ({"pattern": "a.b"}, "a\nb", 1),
        ({"required_tags": ["think", "answer"]}, "<think>1</think><answer>2</answer>", 1),
        ({"required_tags": ["think", "answer"]}, "<answer>2</answer><think>1</think>", 0),
        ({"required_tags": ["answer"]}, "<answer>1</answer><answer>2</answer>", 0),
        ({"balanced_tags": ["a"]}, "<a>1</a> <a></a>", 1),
        ({"balanced_tags": ["a"]}, "", 1),
        ({"balanced_tags": ["a"]}, "<a><a></a></a>", 0),
        ({"balanced_tags": ["a"]}, "</a><a>", 0),
        ({"forbidden": ["Assistant"]}, "Assistant: no", 0),
        ({"max_chars": 3}, "1234", 0),
    ],
)
def test_a_well_formed_completion_scores_one(options: dict[str, Any], completion: str, value: float) -> None:
    assert score(rewards.build({"kind": "format", **options}), make.prompt(), completion).value == value


def test_a_truncated_completion_is_not_well_formed_where_an_end_is_required() -> None:
    reward = rewards.build({"kind": "format", "requires_stop": True})
    assert reward.score(make.prompt(), "x", Finish.LENGTH) == 0


def test_a_wrong_pattern_is_refused() -> None:
    with raises_code(InvalidInput, "config.invalid"):
        rewards.build({"kind": "format", "pattern": "("})


@pytest.mark.parametrize(("tokens", "value"), [(0, 0), (16, 0), (18, -0.5), (20, -1), (999, -1)])
def test_the_penalty_grows_over_the_last_stretch(tokens: int, value: float) -> None:
    reward = rewards.build({"kind": "overlong", "max_tokens": 20, "buffer_tokens": 4})
    assert score(reward, make.prompt(), "text", tokens=tokens).value == value


def test_the_penalty_needs_the_length() -> None:
    reward = rewards.build({"kind": "overlong", "max_tokens": 20, "buffer_tokens": 4})
    with raises_code(InvalidInput, "reward.no_length"):
        score(reward, make.prompt(), "text")


def rubric(**terms: Any) -> Rubric:
    built = rewards.build({"kind": "rubric", "terms": terms})
    assert isinstance(built, Rubric)
    return built


OVERLONG = {"kind": "overlong", "max_tokens": 20, "buffer_tokens": 4}
F1 = {"kind": "f1"}


def test_a_rubric_is_the_weighted_sum_of_its_terms() -> None:
    reward = rubric(
        answer={"reward": F1, "weight": 2}, length={"reward": OVERLONG, "weight": 0.5}, seen={"reward": F1, "weight": 0}
    )
    result = score(reward, prompt_of(answer="Paris"), "Paris", tokens=18)
    assert result == Score(value=2 - 0.25, answer="paris", terms={"answer": 1, "length": -0.5, "seen": 1})


@pytest.mark.parametrize(("completion", "value"), [("<a>Paris</a>", 2.0), ("<a>Paris", 0.0)])
def test_a_term_that_multiplies_is_a_condition(completion: str, value: float) -> None:
    tagged = {"kind": "format", "balanced_tags": ["a"]}
    reward = rubric(
        one={"reward": {"kind": "format"}},
        two={"reward": {"kind": "format"}},
        form={"reward": tagged, "multiplies": True},
    )
    assert score(reward, make.prompt(), completion).value == value


def test_rubrics_nest_and_name_their_terms() -> None:
    inner = {"kind": "rubric", "terms": {"answer": {"reward": F1}}}
    result = score(rubric(outer={"reward": inner, "weight": 3}), prompt_of(answer="x"), "x")
    assert result.terms == {"outer": 1, "outer.answer": 1}
    assert result.value == 3


def test_an_unknown_reward_in_a_rubric_is_refused_before_the_run() -> None:
    with raises_code(InvalidInput, "plugin.unknown_kind"):
        rewards.check({"kind": "rubric", "terms": {"a": {"reward": {"kind": "f2"}}}})


class NoOptions(Config):
    """None."""


@rewards.register("test_part", options=NoOptions)
class Part:
    """A managed reward whose value a test sets."""

    value = 1.0
    events: list[str] = []  # noqa: RUF012

    def __init__(self, options: NoOptions) -> None:
        self.value = Part.value

    async def start(self) -> None:
        Part.events.append("start")

    async def close(self) -> None:
        Part.events.append("close")

    async def score(self, prompt: Prompt, completion: str, finish: Finish) -> float:
        if completion == "raises":
            raise ValueError("broken")
        return self.value


@pytest.mark.anyio
async def test_a_rubric_starts_and_closes_its_parts() -> None:
    Part.events.clear()
    reward = rubric(one={"reward": {"kind": "test_part"}}, two={"reward": F1})
    await reward.start()
    await reward.close()
    await reward.close()
    assert Part.events == ["start", "close"]


@pytest.mark.anyio
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("weight", [1.0, 0.0])
async def test_a_part_without_a_finite_value_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, value: float, weight: float
) -> None:
    monkeypatch.setattr(Part, "value", value)
    scorer = RewardScorer(rubric(part={"reward": {"kind": "test_part"}, "weight": weight}))
    with raises_code(RolloutFailed, "rollout.non_finite_reward") as caught:
        await scorer.score(make.prompt(), "x", Finish.STOP)
    assert caught.value.boundary is Boundary.REWARD


@pytest.mark.anyio
async def test_a_part_that_raises_is_a_failure() -> None:
    scorer = RewardScorer(rubric(part={"reward": {"kind": "test_part"}}, other={"reward": F1}))
    with raises_code(RolloutFailed, "rollout.reward_failed") as caught:
        await scorer.score(prompt_of(answer="x"), "raises", Finish.STOP)
    assert caught.value.boundary is Boundary.REWARD
    assert "broken" in str(caught.value)


@rewards.register("test_result", options=NoOptions)
class Result:
    """Returns what a test sets."""

    result: Any = None

    def __init__(self, options: NoOptions) -> None:
        pass

    def score(self, prompt: Prompt, completion: str, finish: Finish) -> Any:
        return Result.result


@pytest.mark.parametrize("result", [1, 0.5, True, np.float32(0.5), np.int64(1), np.True_, Score(value=1.0)])
def test_a_reward_returns_a_number_or_a_score(result: Any) -> None:
    Result.result = result
    expected = result.value if isinstance(result, Score) else float(result)
    assert score(rewards.build({"kind": "test_result"}), prompt_of(), "").value == expected


@pytest.mark.parametrize("result", ["0.5", "very good", None, {"value": 1.0}, 1j, Score(value="0.5")])  # type: ignore[arg-type]
def test_another_result_is_refused_with_the_reward_its_line_and_what_to_return(result: Any) -> None:
    Result.result = result
    line = Result.score.__code__.co_firstlineno
    location = f"'test_result' (score in test_text_rewards.py, line {line})"
    with raises_code(InvalidInput, "reward.invalid_score", location, type(result).__name__, "return a number"):
        score(rewards.build({"kind": "test_result"}), prompt_of(), "")
    with raises_code(InvalidInput, "reward.invalid_score"):
        Score.of(result)


def test_a_class_without_a_method_that_scores_is_refused_when_it_registers() -> None:
    class Declared(Reward):
        """Inherits the declaration alone."""

    for plugin in (NoOptions, Declared):
        with raises_code(InvalidInput, "reward.no_score", "'test_unscored'", plugin.__name__):
            rewards.register("test_unscored", options=NoOptions)(plugin)
    assert "test_unscored" not in rewards.kinds()


@pytest.mark.parametrize("metric", ["f1", "exact_match"])
@pytest.mark.parametrize(
    ("reference", "completion", "value"),
    [("The", "", 0.0), ("The", "the ", 1.0), ("The", "a", 0.0), ("?", "", 0.0), ("?", "!", 0.0), ("?", "?", 1.0)],
)
def test_a_reference_of_articles_or_punctuation_is_compared_as_it_is(
    metric: str, reference: str, completion: str, value: float
) -> None:
    reward = rewards.build({"kind": "f1", "metric": metric})

    assert score(reward, prompt_of(answer=reference), completion).value == value
