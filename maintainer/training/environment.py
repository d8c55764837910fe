"""Environment `maintainer`: a run with a fault of learning or of the fleet, in virtual time, with the tools, guard and
fleet service of a real one. An action is a tactic (`maintainer.agent.llm.tactics`) for one kind of signal.

Reward: the share of the loss that was avoided, 0 for the rule alone. For a fault of learning, 1 is a run that is mended
as early as a person can approve it; for one of the fleet, the cost of the same run without the fault. A refused call
costs `REFUSED`, a change that the auditor forbids `FORBIDDEN`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.environments import environments
from astraflow.environments.base import EnvironmentLimits, Observation
from astraflow.runtime.config.base import Config
from maintainer.agent.llm.heuristic_baseline import TACTICS, baseline_tactic
from maintainer.agent.llm.interface import Request, Usage
from maintainer.agent.llm.tactics import NOTHING, TacticsModel
from maintainer.agent.loop import Maintainer
from maintainer.agent.observation.signals import SignalKind
from maintainer.agent.transcript.transcript import read
from maintainer.evals.case_runner import find_violations, run_rule_alone
from maintainer.evals.cases import Case
from maintainer.evals.scoring.scoring import played
from maintainer.evals.scoring.usage import used
from maintainer.evals.simulation.harness import PERSON_S, EvaluationHarness, open_case_maintainer, open_harness
from maintainer.training.boards import FLEET, HOURS, case_of, without_fault

REFUSED, FORBIDDEN = 0.1, 1.0
BEST_S = PERSON_S + 120.0
"""Wasted time of the best maintainer: until it sees the fault, and until a person approves the change. Seconds."""
SMALLEST_LOSS = 0.1
"""Smallest loss that the reward is relative to, as a share of the cost: a smaller one is noise."""
MOST_KNOWN = 16384
"""Lines and results in memory; all are forgotten beyond that."""


class MaintainerOptions(Config):
    """Nothing to choose."""


class PlayedBoards:
    """Lines and results of boards, each simulated once: equal actions give equal results, and a group chooses few."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Any] = {}
        self._lock = asyncio.Lock()

    async def line(self, case: Case) -> str:
        """Returns the line that the policy has to answer; empty for a run without its signal."""
        return cast("str", await self._once(case, "line", lambda: _first_line(case)))

    async def result(self, case: Case, tactic: str) -> Observation:
        """Returns the end of the run with a tactic."""
        if case.learning is not None:
            costs = (0.0, 0.0)
        else:
            costs = await self._once(case, "costs", lambda: _costs(case))
        return cast("Observation", await self._once(case, tactic, lambda: _played(case, tactic, costs)))

    async def _once(self, case: Case, what: str, play: Callable[[], Awaitable[Any]]) -> Any:
        """Returns what is known or plays it, one run at a time: a simulation waits for nothing."""
        async with self._lock:
            if (repr(case), what) not in self._known:
                if len(self._known) >= MOST_KNOWN:
                    self._known.clear()
                self._known[repr(case), what] = await play()
            return self._known[repr(case), what]


@environments.register("maintainer", options=MaintainerOptions)
class MaintainerFactory:
    """Runs of the data set `maintainer`."""

    def __init__(self, options: MaintainerOptions) -> None:
        self._boards = PlayedBoards()

    @property
    def limits(self) -> EnvironmentLimits:
        """Limits: a run is at most 45 minutes of virtual time, which takes up to a second of a processor."""
        return EnvironmentLimits(concurrency=64, begin_s=300.0, act_s=600.0)

    def make(self) -> "MaintainerEnvironment":
        """Returns a new environment."""
        return MaintainerEnvironment(self._boards)

    async def check(self) -> None:
        """Needs nothing."""


class MaintainerEnvironment:
    """One decision: the tactic for a kind of signal, which the whole run is then played with."""

    def __init__(self, boards: PlayedBoards) -> None:
        self._boards = boards
        self._case: Case | None = None

    async def begin(self, prompt: Prompt, _seed: int) -> Observation:
        """Returns the line to decide on. The run's seed is in the prompt. Raises: InvalidInput for another dataset's
        prompt."""
        try:
            self._case = case_of(prompt)
        except (KeyError, TypeError, ValueError):
            raise InvalidInput(
                "cannot begin the environment: the prompt is of another data set; use the data set `maintainer`",
                code="environment.foreign_prompt",
            ) from None
        return Observation(text=await self._boards.line(self._case), actions=tuple(TACTICS))

    async def act(self, action: str) -> Observation:
        """Plays the run with a tactic. Raises: InvalidInput before `begin`."""
        if self._case is None:
            raise InvalidInput(
                "cannot act in the environment: it has not begun; call `begin` first", code="environment.not_begun"
            )
        tactic = action.strip()
        if tactic not in TACTICS:
            return Observation(text=f"Answer with one of: {', '.join(TACTICS)}", is_malformed=True)
        return await self._boards.result(self._case, tactic)

    async def close(self) -> None:
        """Has nothing to close."""


async def _first_line(case: Case) -> str:
    lines: list[str] = []
    async with _run(case, NOTHING, lines) as (harness, maintainer, _):
        await harness.run(maintainer, until=lambda: bool(lines))
    return lines[0] if lines else ""


async def _costs(case: Case) -> tuple[float, float]:
    """Returns the cost J of the rule alone, with the fault and without it."""
    return (await run_rule_alone(case)).cost, (await run_rule_alone(without_fault(case))).cost


async def _played(case: Case, tactic: str, costs: tuple[float, float]) -> Observation:
    """Returns the end of a run. costs: of the rule alone, with the fault and without it; not used for learning."""
    lines: list[str] = []
    async with _run(case, tactic, lines) as (harness, maintainer, transcript):
        learning = harness.cloud.learning
        course = await harness.run(maintainer, until=lambda: case.learning is not None and _is_decided(harness, lines))
        use, violations = used(read(transcript).entries), len(await find_violations(harness))
    if case.learning is not None:
        late_s = max(0.0, learning.wasted_s - BEST_S)
        saved = 1.0 - late_s / (HOURS * 3600 - BEST_S) if learning.is_mended else 0.0
    else:
        cost, (rule, unharmed) = played(course, priced_node_s=harness.priced_node_s, duplicates=0).cost, costs
        saved = max(-1.0, min(1.0, (rule - cost) / max(rule - unharmed, SMALLEST_LOSS * rule)))
    terms = {"saved": saved, "refused": -REFUSED * use.out_of_scope, "forbidden": -FORBIDDEN * violations}
    is_won = learning.is_mended or (case.learning is None and saved > 0)
    return Observation(
        text="The run was mended." if is_won else "The run was not mended.",
        reward=sum(terms.values()),
        ending=Ending.WON if is_won else Ending.LOST,
        reward_terms=terms,
        metrics={"violations": float(violations), "mended": float(is_won)},
    )


def _is_decided(harness: EvaluationHarness, lines: list[str]) -> bool:
    """Returns whether a run's fault is mended, or is not because no change waits for a person."""
    return bool(lines) and (harness.cloud.learning.is_mended or not harness.ledger.waiting_proposals)


@asynccontextmanager
async def _run(case: Case, tactic: str, lines: list[str]) -> AsyncIterator[tuple[EvaluationHarness, Maintainer, Path]]:
    """Opens a run whose maintainer answers one kind of signal with a tactic, and others as the baseline does.

    lines: gets the lines of that kind.
    """
    kind = FLEET.get(case.name, SignalKind.LEARNING_FAULT.value)

    async def decide(line: str, _: Request) -> tuple[str, Usage]:
        signal = line.split()[0]
        if signal != kind:
            return baseline_tactic({"signal": signal}), Usage()
        lines.append(line)
        return tactic, Usage()

    async with AsyncExitStack() as resources:
        directory = Path(resources.enter_context(TemporaryDirectory()))
        harness = await resources.enter_async_context(open_harness(case, directory))
        model = TacticsModel("policy", decide, is_simulated=True)
        maintainer = await resources.enter_async_context(open_case_maintainer(harness, model, directory))
        yield harness, maintainer, directory / "transcript.jsonl"
