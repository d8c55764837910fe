"""Contract tests of every reward."""

from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest

from astraflow.contract.plugins import broken_promises
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.rewards.base import Reward, score_completion
from astraflow.rewards.conformance import check_reward
from astraflow.runtime.plugins import ManagedPlugin, start_managed


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
