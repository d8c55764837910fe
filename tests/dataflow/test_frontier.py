"""A run killed at any point of any commit continues with the same prompts and batches as an uninterrupted run.

A commit is one consistent cut: the data cursor, selectors with their rows, filters, open groups, buffers, batches
and versions. After any kill, a run that gets the same results issues exactly the prompts of an uninterrupted run:
none is skipped, none is repeated.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from astraflow.contract.batches import StepReport
from astraflow.contract.ids import BatchId, GroupId, PolicyId, PromptId, Version, ordinal_of
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.dataflow.config import DataflowConfig
from astraflow.dataflow.operations.nodes import NodeOperations
from astraflow.dataflow.operations.trainers import TrainerOperations
from astraflow.dataflow.outcomes import ACCEPTED, LATE
from astraflow.dataflow.run import Run
from astraflow.dataflow.service import build_run
from astraflow.dataflow.storage.journal import Journal
from tests import make
from tests.dataflow.kills import KilledFiles
from tests.dataflow.running import archive_in, committing, config, facts
from tests.fakes.clock import ManualClock

pytestmark = pytest.mark.long

SOLVER = PolicyId("solver")
GROUP_SIZE = 2
REWARDS = {"solved": (1.0, 1.0), "missed": (0.0, 0.0), "mixed": (0.0, 1.0)}
LETTERS = {"kind": "letters", "alphabet": "ab", "length": 2}  # four prompts: epochs and streaks occur soon
MIXTURE = {
    "kind": "mixture",
    "parts": {"short": {"dataset": LETTERS, "weight": 2}, "long": {"dataset": {**LETTERS, "length": 3}}},
}
FRESH, REPLAY = {"kind": "fresh"}, {"kind": "replay", "ratio": 0.5}
RECIPES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "sequential": (LETTERS, {"kind": "sequential"}, {"kind": "fresh", "order": "fifo"}),
    "uniform": (LETTERS, {"kind": "uniform"}, FRESH),
    "greso": (LETTERS, {"kind": "greso"}, REPLAY),
    "curriculum": (LETTERS, {"kind": "curriculum"}, {"kind": "priority"}),
    "mixture": (MIXTURE, {"kind": "greso"}, REPLAY),
}
"""Data set, selector and sampler."""


@dataclass(slots=True)
class Told:
    """Tasks that a run issued, and the results generated for them."""

    prompts: dict[GroupId, PromptId] = field(default_factory=dict)
    issued_by: list[int] = field(default_factory=list)
    """Number of groups issued by the end of each action."""
    pushed: dict[int, tuple[Episode, ...]] = field(default_factory=dict)
    """Pushed episodes by number of the action."""
    trained: dict[int, tuple[BatchId, tuple[str, ...]]] = field(default_factory=dict)
    """Id and tasks of the batch, by number of the action."""


class Session:
    """Run with one node and one trainer, each of which completes an action before the next."""

    def __init__(self, run: Run, issued: Told) -> None:
        self.run = run
        self.told = issued
        self.flow = next(iter(run.flows.values()))
        self.stream = run.streams[SOLVER]
        self._nodes, self._trainers = NodeOperations(run), TrainerOperations(run)
        self._node = self._nodes.membership.join(facts()).id
        self._open = sorted(self.flow.open_groups, key=lambda group: ordinal_of(group) or 0)

    async def act(self, number: int, action: tuple[str, Any]) -> None:
        """Performs an action for the first time."""
        match action:
            case ("lease", groups):
                await self.lease(groups)
            case ("push", (which, rewards)) if self._open:
                group = self._open.pop(which % len(self._open))
                self.told.pushed[number] = self._results(group, REWARDS[rewards])
                await self.push(self.told.pushed[number])
            case ("step", _):
                batch = await self._trainers.pull(SOLVER, self.stream.version, wait_s=0)
                if batch is not None:
                    self.told.trained[number] = (batch.id, tuple(row.task for row in batch.rows))
                    assert await self._acknowledge(batch.id, self.stream.version)
        self.told.issued_by.append(self.flow.issued)

    async def repeat_action(self, number: int, action: tuple[str, Any], before: Told) -> None:
        """Repeats an action of an earlier session, of which all, some or nothing may have been committed."""
        if action[0] == "lease" and self.flow.issued < before.issued_by[number]:
            await self.lease(before.issued_by[number] - self.flow.issued)
        if number in before.pushed:
            await self.push(before.pushed[number])
        if number in before.trained:
            await self._train_again(*before.trained[number])
        assert self.flow.issued == before.issued_by[number]

    async def lease(self, groups: int) -> None:
        """Leases as many new groups as the gate allows; tasks in doubt stay so, since no time passes."""
        lease = await self._nodes.leasing.lease(
            self._node, groups * GROUP_SIZE, versions={SOLVER: self.stream.version}, wait_s=0
        )
        for task in lease.tasks:
            self.told.prompts[task.group] = task.prompt.id
            if task.member == 0:
                self._open.append(task.group)

    async def push(self, results: tuple[Episode, ...]) -> None:
        """Pushes a whole group at once."""
        outcomes = await self._nodes.results.push(self._node, results)
        assert set(outcomes) in ({ACCEPTED}, {LATE})

    def _results(self, group: GroupId, rewards: tuple[float, ...]) -> tuple[Episode, ...]:
        version = int(self.stream.version)
        return tuple(
            make.episode(f"{group}/{member}", node=self._node, reward=reward, version=version)
            for member, reward in enumerate(rewards)
        )

    async def _train_again(self, batch_id: BatchId, tasks: tuple[str, ...]) -> None:
        step = int(batch_id.rpartition(":")[2])
        if self.stream.counts.steps == step:
            batch = await self._trainers.pull(SOLVER, self.stream.version, wait_s=0)
            assert batch is not None
            assert batch.id == batch_id
            assert tuple(row.task for row in batch.rows) == tasks
        await self._acknowledge(batch_id, Version(step))

    async def _acknowledge(self, batch: BatchId, version: Version) -> bool:
        report = StepReport(
            batch=batch, policy=SOLVER, version=Version(version + 1), wait_s=0, compute_s=1, publish_s=0
        )
        return await self._trainers.report_step(report)


def recipe(name: str) -> DataflowConfig:
    """Returns a run with few prompts, small batches, and a gate that allows several batches.

    Without pacing, which measures anew after a restart: it decides when a group is issued, and never which.
    """
    dataset, selector, sampler = RECIPES[name]
    plain = config(batch_groups=2, max_staleness=4, group_size=GROUP_SIZE, filters=("informative",), sampler=sampler)
    flows = {
        flow_id: flow.model_copy(update={"dataset": dataset, "selector": selector})
        for flow_id, flow in plain.flows.items()
    }
    streams = {policy: stream.model_copy(update={"pacing": False}) for policy, stream in plain.streams.items()}
    return plain.model_copy(update={"flows": flows, "streams": streams})


@asynccontextmanager
async def session(folder: Path, chosen: DataflowConfig, *, copies: Path | None = None) -> AsyncIterator[Session]:
    folder.mkdir(exist_ok=True)
    journal = Journal(folder / "journal.sqlite")
    if copies is not None:
        journal._files = KilledFiles(folder, copies)
    with closing(journal), closing(archive_in(folder)) as archive:
        run = build_run(chosen, journal=journal, archive=archive, clock=ManualClock())
        run.restore(grace_s=1)
        async with committing(journal):
            yield Session(run, Told())


async def uninterrupted(
    folder: Path, copies: Path, chosen: DataflowConfig, script: list[tuple[str, Any]]
) -> tuple[Told, KilledFiles, Any]:
    async with session(folder, chosen, copies=copies) as playing:
        files = playing.run.journal._files
        assert isinstance(files, KilledFiles)
        for number, action in enumerate(script):
            await playing.act(number, action)
            files.durable = number + 1
        return playing.told, files, await frontier(playing)


async def continued(
    folder: Path, chosen: DataflowConfig, script: list[tuple[str, Any]], before: Told, *, done: int
) -> tuple[dict[GroupId, PromptId], Any]:
    """Returns the prompts open after the kill or issued later, and the final state of the run."""
    async with session(folder, chosen) as playing:
        prompts = {group.id: group.prompt.id for group in playing.flow.open_groups.values()}
        for number in range(done, len(script)):
            await playing.repeat_action(number, script[number], before)
        return prompts | playing.told.prompts, await frontier(playing)


async def frontier(playing: Session) -> Any:
    """Returns the state, in memory and on disk, that determines the next choices."""
    journal = playing.run.journal
    journal.touch()
    await journal.wait_durable()
    flow, stream = playing.flow.state_dict(), playing.stream.state_dict()
    tables = [
        journal.rows(query)
        for query in (
            "select owner, key, body from rows order by owner, key",
            "select id, body from groups order by id",
            "select policy, group_id, batch, is_trained from admissions order by rowid",
            "select policy, id, version from batches order by policy",
        )
    ]
    return (
        *(flow[part] for part in ("issuer", "filters", "admitted", "dropped")),
        {name: count for name, count in stream["counts"].items() if name != "redelivered"},  # type: ignore[union-attr]
        *(stream[part] for part in ("version", "sampler")),
        +playing.stream.counts.dropped,
        tables,
    )


actions = st.one_of(
    st.tuples(st.just("lease"), st.integers(1, 4)),
    st.tuples(st.just("push"), st.tuples(st.integers(0, 9), st.sampled_from(list(REWARDS)))),
    st.tuples(st.just("push"), st.tuples(st.integers(0, 9), st.just("mixed"))),
    st.tuples(st.just("step"), st.none()),
)


EVENTFUL: list[tuple[str, Any]] = [
    *(("push", (which, rewards)) for which, rewards in [(3, "solved"), (4, "mixed"), (0, "missed"), (2, "mixed")]),
    ("lease", 3),
    *(("push", (which, rewards)) for which, rewards in [(4, "mixed"), (1, "solved"), (2, "missed")]),
    ("step", None),
    ("lease", 4),
    *(("push", (which, rewards)) for which, rewards in [(3, "mixed"), (1, "solved"), (1, "missed"), (0, "mixed")]),
    ("step", None),
    ("lease", 4),
]
"""Actions with groups out of order, prompts repeated after streaks, and batches of some of the waiting groups."""


@pytest.mark.parametrize(
    "name", [name if name in ("mixture", "greso") else pytest.param(name, marks=pytest.mark.long) for name in RECIPES]
)
@example(drawn=EVENTFUL)
@settings(max_examples=2, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=st.lists(actions, min_size=3, max_size=10))
def test_no_prompt_is_skipped_or_repeated_after_a_kill_at_any_commit(
    tmp_path_factory: pytest.TempPathFactory, name: str, drawn: list[tuple[str, Any]]
) -> None:
    script = [("lease", 6), *drawn, ("lease", 4)]
    folder, chosen = tmp_path_factory.mktemp(name), recipe(name)
    issued, files, expected = asyncio.run(uninterrupted(folder / "run", folder / "kills", chosen, script))
    for kill in files.kills:
        prompts, actual = asyncio.run(continued(kill.folder, chosen, script, issued, done=kill.durable))
        assert prompts == {group: issued.prompts[group] for group in prompts}
        issued_later = [
            group for group in issued.prompts if (ordinal_of(group) or 0) >= issued.issued_by[kill.durable - 1]
        ]
        assert kill.durable == 0 or prompts.keys() >= set(issued_later)
        assert actual == expected
    shutil.rmtree(folder)
