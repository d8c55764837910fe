"""Suites of data sets, engines, environments, rewards and workflows."""

import json
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import pytest

from astraflow.conformance.engines import Subject, run_checks
from astraflow.conformance.environments import check_environment
from astraflow.conformance.rewards import check_reward
from astraflow.conformance.workflows import CHECKS, WorkflowCheck, check_promise
from astraflow.contract.errors import InvalidInput
from astraflow.contract.plugins import Outcome, broken_promises
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.datasets.base import Dataset
from astraflow.environments.base import EnvironmentFactory
from astraflow.environments.episodes import Expert
from astraflow.rewards.base import Reward, score_completion
from astraflow.runtime.plugins import ManagedPlugin, start_managed

SAMPLE_SIZE = 200
"""Checked prompts, spread over a large data set."""


class DatasetSuite:
    """Tests to inherit. Fixture to provide: `build` (the data set for a seed, deterministic)."""

    def test_prompts_follow_from_seed_and_index(self, build: Callable[[int], Dataset]) -> None:
        first, same = build(3), build(3)
        forwards = [first.prompt(index) for index in sample_of(first)]
        backwards = [same.prompt(index) for index in reversed(sample_of(same))]
        assert forwards == backwards[::-1]
        assert first.size == same.size

    def test_fingerprints_are_equal_for_equal_prompts(self, build: Callable[[int], Dataset]) -> None:
        first, same, other = build(3), build(3), build(4)
        assert first.fingerprint == first.fingerprint == same.fingerprint
        differ = [first.prompt(index) != other.prompt(index) for index in sample_of(first)]
        assert (first.fingerprint != other.fingerprint) == any(differ)

    def test_every_index_has_a_prompt_with_its_own_id(self, build: Callable[[int], Dataset]) -> None:
        dataset = build(0)
        ids = [dataset.prompt(index).id for index in sample_of(dataset)]
        assert dataset.size >= 1
        assert len(set(ids)) == len(ids) > 0

    @pytest.mark.parametrize("beyond", [-1, 0, 1])
    def test_an_index_out_of_range_is_refused(self, build: Callable[[int], Dataset], beyond: int) -> None:
        dataset = build(0)
        with pytest.raises(InvalidInput) as caught:
            dataset.prompt(-1 if beyond < 0 else dataset.size + beyond)
        assert caught.value.code == "dataset.index_out_of_range"

    def test_fields_are_json_with_question_and_answer(self, build: Callable[[int], Dataset]) -> None:
        dataset = build(0)
        for index in sample_of(dataset):
            fields = dict(dataset.prompt(index).fields)
            assert json.loads(json.dumps(fields, allow_nan=False)) == fields
            assert isinstance(fields["question"], str)
            assert fields["question"]
            assert isinstance(fields["answer"], str)


class EngineSuite:
    """Tests to inherit. Fixture to provide: `subject`, an engine that is not started, and what its checks need;
    `astraflow.conformance.engine_subjects.plugin_subject` builds one with a small model."""

    @pytest.mark.anyio
    async def test_the_promises_of_an_engine_are_kept(self, subject: Subject) -> None:
        assert broken_promises([result async for result in run_checks(subject)]) == []


class EnvironmentSuite:
    """Tests to inherit. Fixtures to provide: `factory` (not started), `prompts` (two or more) and `expert`."""

    @pytest.mark.anyio
    async def test_the_promises_of_the_interface_are_kept(
        self, factory: EnvironmentFactory, prompts: Sequence[Prompt], expert: Expert
    ) -> None:
        assert broken_promises(await check_environment(factory, prompts, expert)) == []


class RewardSuite:
    """Tests to inherit. Fixtures to provide: `reward` (not started), `prompt`, and `completions`, at least two."""

    @pytest.mark.anyio
    async def test_the_reward_conforms(self, reward: Reward, prompt: Prompt, completions: Sequence[str]) -> None:
        async with AsyncExitStack() as resources:
            await start_managed((reward,), resources)
            assert broken_promises(await check_reward(reward, prompt, completions)) == []
            if isinstance(reward, ManagedPlugin):
                await reward.close()
                await reward.close()
                await reward.start()
            assert (await score_completion(reward, prompt, completions[0], Finish.STOP, tokens=16)).is_finite


@pytest.mark.anyio
class WorkflowSuite:
    """Tests to inherit. Fixture to provide: `subject`, a function that returns the workflow and a regular episode."""

    unsupported: frozenset[str] = frozenset()
    """Promises that do not apply, such as those about a reward for a workflow that scores nothing."""

    @pytest.mark.parametrize("promise", CHECKS)
    async def test_a_promise_is_kept(self, subject: Callable[[], WorkflowCheck], promise: str) -> None:
        result = await check_promise(promise, subject())

        expected = Outcome.UNSUPPORTED if promise in self.unsupported else Outcome.PASSED
        assert result.outcome is expected, result.detail


def sample_of(dataset: Dataset) -> list[int]:
    """Returns indices from the whole data set; all of them when it is small."""
    return sorted({index * dataset.size // SAMPLE_SIZE for index in range(SAMPLE_SIZE)})
