"""Experts win their tasks, and their episodes are examples with the tokens of the workflow."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets import datasets
from astraflow.datasets.base import Dataset
from astraflow.environments import environments
from astraflow.environments.base import EnvironmentFactory, Observation
from astraflow.environments.episodes import play, total_reward
from astraflow.models import models
from astraflow.models.base import EpisodeOptions, Transcript
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.recipe.sources import warm_start_values
from astraflow.runtime.plugins import PLUGINS_VARIABLE
from astraflow.trainer.demonstrations import demonstrations
from astraflow.workflows.scripted.experts import Situation, expert_named, fixed_turns
from astraflow.workflows.solve_and_verify import parse_verification_prompt
from tests.errors import raises_code

SUMS = datasets.build({"kind": "arithmetic"}, 0)
VERIFICATION = {
    "workflow": {"kind": "solve_and_verify"},
    "experts": {"solver": "fallible_solver", "verifier": "verifier"},
}


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return models.build({"kind": "tiny"}).tokenizer()


def played(dataset: Dataset, tokenizer: ChatTokenizer, count: int, **options: Any) -> list[Transcript]:
    return list(islice(demonstrations(EpisodeOptions(**options), dataset, tokenizer, seed=0), count))


def written(transcript: Transcript, tokenizer: ChatTokenizer) -> str:
    return tokenizer.decode(transcript.tokens[transcript.is_written], keep_special_tokens=True)


def test_an_example_of_an_agent_has_all_its_turns_and_nothing_else_is_imitated(tokenizer: ChatTokenizer) -> None:
    tasks = datasets.build({"kind": "textcraft", "min_depth": 1, "max_depth": 2, "max_count": 1}, 0)
    workflow = {"kind": "act", "environment": {"kind": "textcraft"}}
    plans = {str(tasks.prompt(index).fields["answer"]).replace("\n", "<|im_end|>") for index in range(tasks.size)}

    transcripts = played(tasks, tokenizer, 20, workflow=workflow, experts={"solver": "plan"}, prompts=20)

    assert {written(transcript, tokenizer).removesuffix("<|im_end|>") for transcript in transcripts} <= plans
    assert all("Got 1" in tokenizer.decode(transcript.tokens) for transcript in transcripts)
    assert not any(transcript.is_written[0] for transcript in transcripts)


def test_the_examples_repeat_the_played_prompts_in_another_order(tokenizer: ChatTokenizer) -> None:
    transcripts = played(SUMS, tokenizer, 60, workflow={"kind": "single_turn"}, prompts=30)

    first, second = ([tokenizer.decode(item.tokens) for item in part] for part in (transcripts[:30], transcripts[30:]))
    assert len(set(first)) == 30
    assert sorted(first) == sorted(second) and first != second


def test_the_prompts_of_a_mixture_are_played_by_the_weights_of_its_parts(tokenizer: ChatTokenizer) -> None:
    parts = {"sums": ("add", 3.0), "products": ("multiply", 1.0)}
    mixture: dict[str, Any] = {
        name: {"weight": weight, "dataset": {"kind": "arithmetic", "operation": operation, "digits": 1}}
        for name, (operation, weight) in parts.items()
    }
    dataset = datasets.build({"kind": "mixture", "parts": mixture}, 0)
    transcripts = played(dataset, tokenizer, 160, workflow={"kind": "single_turn"}, prompts=160)

    prompts = [tokenizer.decode(transcript.tokens) for transcript in transcripts]
    sums = [prompt for prompt in prompts if "+" in prompt]
    assert (len(sums), len(set(sums))) == (120, 100)  # there are 100 sums of digits
    assert len(set(prompts)) - len(set(sums)) == 40


def test_a_tool_is_called_with_the_question_and_the_answer_follows_its_result(tokenizer: ChatTokenizer) -> None:
    workflow = {"kind": "tool_use", "call_format": "xml", "tools": [{"kind": "calculator"}]}
    problem = Prompt(id=PromptId("p"), fields={"question": "6*7", "answer": "42"})

    turns = ("<calculate>{question}</calculate>", "{answer}")
    (transcript,) = played(_Single(problem), tokenizer, 1, workflow=workflow, turns={"solver": turns})

    assert written(transcript, tokenizer) == "<calculate>6*7</calculate><|im_end|>42<|im_end|>"
    assert "<tool_response>\n42\n" in tokenizer.decode(transcript.tokens)


@pytest.mark.long
def test_a_deliberate_mistake_makes_room_for_a_correction_and_is_no_example(tokenizer: ChatTokenizer) -> None:
    transcripts = played(SUMS, tokenizer, 40, policy="solver", prompts=40, **VERIFICATION)

    answers = [(tokenizer.decode(item.tokens), written(item, tokenizer)) for item in transcripts]
    retries = [text for text, _ in answers if "rejected your answer" in text]
    assert len(retries) >= 15
    for text, answer in answers:
        left, right = text.partition("\n")[2].partition("=")[0].split("+")
        assert answer == f"{int(left) + int(right)}<|im_end|>"


def test_a_verifier_sees_right_and_wrong_answers(tokenizer: ChatTokenizer) -> None:
    transcripts = played(SUMS, tokenizer, 40, policy="verifier", prompts=40, **VERIFICATION)

    verdicts = [written(transcript, tokenizer) for transcript in transcripts]
    assert 0.3 < sum("approve" in verdict for verdict in verdicts) / len(verdicts) < 0.7


def test_several_plays_show_a_verifier_right_and_wrong_answers_to_the_same_question(tokenizer: ChatTokenizer) -> None:
    sums = datasets.build({"kind": "arithmetic", "digits": 1}, 0)
    transcripts = played(sums, tokenizer, 100 * 12, policy="verifier", episodes_per_prompt=12, **VERIFICATION)

    requests = [parse_verification_prompt(tokenizer.decode(item.tokens)) for item in transcripts]
    answers = [
        (request.question.rpartition("\n")[2], int(request.answer)) for request in requests if request is not None
    ]
    errors: dict[str, set[int]] = {}
    for question, answer in answers:
        left, right = question.removesuffix("=").split("+")
        errors.setdefault(question, set()).add(answer - int(left) - int(right))
    assert len(errors) == 100
    assert sum(0 in some and len(some) > 3 for some in errors.values()) >= 95
    assert sum(bool(some & {1, -1}) for some in errors.values()) >= 50, "near mistakes are the hard ones"
    assert min(answer for _, answer in answers) >= 0


@pytest.mark.anyio
async def test_the_shopper_buys_what_every_goal_asks_for() -> None:
    store = {"products": 40}
    goals = datasets.build({"kind": "webshop", "split": "all", "goals": 40, "store": store}, 0)
    factory: Any = environments.build({"kind": "webshop", **store})
    await factory.start()

    rewards = [await _reward("shopper", factory, goals.prompt(index)) for index in range(goals.size)]

    assert min(rewards) == 1.0
    await factory.close()


@pytest.mark.anyio
async def test_the_household_expert_finds_objects_without_knowing_where_they_are() -> None:
    games = datasets.build(
        {"kind": "alfworld", "generated": 6, "receptacles": 3, "objects": 3, "task_types": ["pick_and_place_simple"]}, 0
    )
    factory = environments.build({"kind": "alfworld"})

    assert [await _reward("household", factory, games.prompt(index)) for index in range(games.size)] == [1.0] * 6


def test_an_unknown_expert_or_policy_is_refused(tokenizer: ChatTokenizer) -> None:
    with raises_code(InvalidInput, "workflow.unknown_expert"):
        played(SUMS, tokenizer, 1, workflow={"kind": "single_turn"}, experts={"solver": "shoper"})
    with raises_code(InvalidInput, "model.unknown_episode_policy"):
        played(SUMS, tokenizer, 1, workflow={"kind": "single_turn"}, policy="writer")


def test_a_function_of_a_plugin_plays_as_expert_and_is_part_of_the_identity_of_the_model(
    tokenizer: ChatTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own_expert_of_test.py"
    file.write_text(
        "from astraflow.workflows.scripted.experts import Reply\n\n\ndef shout(situation):\n"
        "    return Reply(text=str(situation.prompt.fields['answer']) + '!')\n"
    )
    monkeypatch.setenv(PLUGINS_VARIABLE, str(file))
    experts = {"solver": "own_expert_of_test:shout"}
    transcripts = played(SUMS, tokenizer, 4, workflow={"kind": "single_turn"}, experts=experts, prompts=4)
    assert all(written(transcript, tokenizer).removesuffix("<|im_end|>").endswith("!") for transcript in transcripts)

    spec = {"warm_start": {"dataset": {"kind": "arithmetic"}, "episodes": {"experts": experts}}}
    first = warm_start_values([(("model",), models, spec)])
    file.write_text(file.read_text() + "\n")
    assert warm_start_values([(("model",), models, spec)]) != first != {}


@pytest.mark.parametrize("entry", ["os:system", "own_expert_of_test:missing", "unknown:f", "json:dumps"])
def test_a_function_of_any_other_module_is_no_expert(entry: str) -> None:
    with raises_code(InvalidInput, "plugin.function_not_found"):
        expert_named(entry)


def test_fixed_turns_repeat_the_last_one() -> None:
    expert = fixed_turns(("{question}", "{answer}!"))
    prompt = Prompt(id=PromptId("p"), fields={"question": "q", "answer": 3})

    assert [expert(_situation(prompt, turn=turn)).text for turn in range(3)] == ["q", "3!", "3!"]


class _Single:
    """A dataset of one prompt."""

    size = 1
    fingerprint = ""

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt

    def prompt(self, index: int) -> Prompt:
        return self._prompt


def _situation(prompt: Prompt, *, turn: int = 0, text: str = "") -> Situation:
    return Situation(prompt=prompt, other=prompt, number=0, turn=turn, text=text)


async def _reward(expert: str, factory: EnvironmentFactory, prompt: Prompt) -> float:
    def act(prompt: Prompt, observations: Sequence[Observation]) -> str:
        text = "\n".join(observation.text for observation in observations)
        return expert_named(expert)(_situation(prompt, turn=len(observations) - 1, text=text)).text

    return total_reward(await play(factory, prompt, 0, act))
