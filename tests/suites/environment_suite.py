"""Contract tests of every environment."""

from collections.abc import Sequence

import pytest

from astraflow.contract.plugins import broken_promises
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.environments.base import EnvironmentFactory
from astraflow.environments.conformance import check_environment
from astraflow.environments.episodes import Expert


class EnvironmentSuite:
    """Tests to inherit. Fixtures to provide: `factory` (not started), `prompts` (two or more) and `expert`."""

    @pytest.mark.anyio
    async def test_the_promises_of_the_interface_are_kept(
        self, factory: EnvironmentFactory, prompts: Sequence[Prompt], expert: Expert
    ) -> None:
        assert broken_promises(await check_environment(factory, prompts, expert)) == []
