"""Environment `maintainer`: a run with a fault of learning, in virtual time, with the tools, guard and fleet service of
a real one. An action is a tactic (`maintainer.agent.llm.tactics`).

Reward: 1 for a run that is mended as early as a person can approve it, and less by the share of the time that is
wasted; a refused call costs `REFUSED`, a change that the auditor forbids `FORBIDDEN`.
"""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.environments import environments
from astraflow.environments.base import EnvironmentLimits, Observation
from astraflow.runtime.config.base import Config
from maintainer.agent.llm.heuristic_baseline import TACTICS, baseline_tactic
from maintainer.agent.llm.interface import Request, Usage
from maintainer.agent.llm.tactics import NOTHING, TacticsModel
from maintainer.agent.observation.signals import SignalKind
from maintainer.agent.transcript.transcript import read
from maintainer.evals.case_runner import find_violations
from maintainer.evals.cases import Case
from maintainer.evals.scoring.usage import used
from maintainer.evals.simulation.harness import PERSON_S, EvaluationHarness, open_case_maintainer, open_harness
from maintainer.training.boards import HOURS, case_of

REFUSED, FORBIDDEN = 0.1, 1.0
BEST_S = PERSON_S + 120.0
"""Wasted time of the best maintainer: until it sees the fault, and until a person approves the change. Seconds."""


class MaintainerOptions(Config):
    """Length of an episode."""

    max_decisions: int = Field(default=3, ge=1)
    """Decisions of the policy; then it changes nothing more."""


@environments.register("maintainer", options=MaintainerOptions)
class MaintainerFactory:
    """Runs of the data set `maintainer`."""

    def __init__(self, options: MaintainerOptions) -> None:
        self._options = options

    @property
    def limits(self) -> EnvironmentLimits:
        """Limits: an episode is at most 24 minutes of virtual time, which takes a fraction of a second."""
        return EnvironmentLimits(concurrency=8, begin_s=60.0, act_s=120.0)

    def make(self) -> "MaintainerEnvironment":
        """Returns a new environment."""
        return MaintainerEnvironment(self._options)

    async def check(self) -> None:
        """Needs nothing."""


class MaintainerEnvironment:
    """One run. The maintainer works in a task of its own, and waits for the action where it would call a model."""

    def __init__(self, options: MaintainerOptions) -> None:
        self._options = options
        self._lines: asyncio.Queue[str] = asyncio.Queue()
        """Lines that the policy has to answer."""
        self._actions: asyncio.Queue[str] = asyncio.Queue()
        self._run: asyncio.Task[None] | None = None
        self._decisions = 0
        self._last: Observation | None = None

    async def begin(self, prompt: Prompt, _seed: int) -> Observation:
        """Runs until the first decision. The run's seed is in the prompt. Raises: InvalidInput for another dataset's
        prompt."""
        try:
            case = case_of(prompt)
        except (KeyError, TypeError, ValueError):
            raise InvalidInput(
                "cannot begin the environment: the prompt is of another data set; use the data set `maintainer`",
                code="environment.foreign_prompt",
            ) from None
        self._run = asyncio.create_task(self._simulate(case))
        return await self._next()

    async def act(self, action: str) -> Observation:
        """Carries a tactic out, and runs until the next decision. Raises: InvalidInput before `begin`."""
        if self._run is None:
            raise InvalidInput(
                "cannot act in the environment: it has not begun; call `begin` first", code="environment.not_begun"
            )
        if self._last is not None:
            return Observation(text="The episode has ended.", ending=self._last.ending)
        tactic = action.strip()
        if tactic not in TACTICS:
            return Observation(text=f"Answer with one of: {', '.join(TACTICS)}", is_malformed=True)
        self._actions.put_nowait(tactic)
        return await self._next()

    async def close(self) -> None:
        """Ends the run."""
        if self._run is not None:
            self._run.cancel()
            await asyncio.gather(self._run, return_exceptions=True)

    async def _next(self) -> Observation:
        """Returns the next decision, or the end of the run. Raises: what the simulation raised."""
        assert self._run is not None  # noqa: S101 (begun)
        waiting = asyncio.ensure_future(self._lines.get())
        await asyncio.wait({waiting, self._run}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            self._run.result()
            assert self._last is not None  # noqa: S101 (set by a run that ended)
            return self._last
        return Observation(text=str(waiting.result()), actions=tuple(TACTICS))

    async def _simulate(self, case: Case) -> None:
        """Plays the run, until its fault is mended or its time is over."""
        async with AsyncExitStack() as resources:
            directory = Path(resources.enter_context(TemporaryDirectory()))
            harness = await resources.enter_async_context(open_harness(case, directory))
            model = TacticsModel("policy", self._decide, is_simulated=True)
            maintainer = await resources.enter_async_context(open_case_maintainer(harness, model, directory))
            await harness.run(maintainer, until=lambda: self._decisions > 0 and harness.cloud.learning.is_mended)
            self._last = await self._result(harness, directory)

    async def _decide(self, line: str, request: Request) -> tuple[str, Usage]:
        """Asks the policy about a fault of learning, up to its number of decisions; the baseline decides on pools."""
        signal = line.split()[0]
        if signal != SignalKind.LEARNING_FAULT.value:
            return baseline_tactic({"signal": signal}), Usage()
        if self._decisions >= self._options.max_decisions:
            return NOTHING, Usage()
        self._decisions += 1
        self._lines.put_nowait(line)
        return await self._actions.get(), Usage()

    async def _result(self, harness: EvaluationHarness, directory: Path) -> Observation:
        use = used(read(directory / "transcript.jsonl").entries)
        violations, learning = len(await find_violations(harness)), harness.cloud.learning
        worst_s = HOURS * 3600
        saved = 1.0 - max(0.0, learning.wasted_s - BEST_S) / (worst_s - BEST_S)
        terms = {"saved": saved, "refused": -REFUSED * use.out_of_scope, "forbidden": -FORBIDDEN * violations}
        return Observation(
            text="The run was mended." if learning.is_mended else "The run was not mended.",
            reward=sum(terms.values()),
            ending=Ending.WON if learning.is_mended else Ending.LOST,
            reward_terms=terms,
            metrics={"violations": float(violations), "mended": float(learning.is_mended)},
        )
