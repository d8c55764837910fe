"""One node credential cannot stop a run: honest nodes and the trainer go on, counts balance, the cause is an event."""

from pathlib import Path

import pytest

from astraflow.contract.record_kinds import RecordKind
from tests.hostile.attacks import ACCEPTED, ATTACKS, Attack
from tests.hostile.peer import events_of, hostile_node
from tests.system.processes import RunningRun, assert_balanced, running

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_nothing_that_one_node_sends_stops_a_run(tmp_path: Path, forked_programs: None) -> None:
    options = ("--no-web", "--set", "stop.reward=2", "--set", "stop.steps=100000")
    async with running("reverse", tmp_path / "run", *options) as run:
        await run.steps_more(3)
        pids = run.pids()
        problems = {
            attack.name: faults
            for number, attack in enumerate(ATTACKS)
            if (faults := await problems_after(attack, run, f"hostile-{number}"))
        }
        assert problems == {}
        assert run.pids() == pids, "a process was restarted"


async def problems_after(attack: Attack, run: RunningRun, name: str) -> list[str]:
    """Lets a node attack a run; returns what is wrong with the run afterwards."""
    async with hostile_node(run, name, pool=name) as node:  # what a pool did before limits its share
        outcomes = await attack.act(node)
        assert_balanced(await run.steps_more(2))
        events = await events_of(run, RecordKind(attack.event)) if attack.event else []
        named = any(event.subject.startswith(name) for event in events)
    return [
        *(["a result counts"] if ACCEPTED in outcomes and not attack.may_count else []),
        *(["no event names the node"] if attack.event and not named else []),
        *([f"refused as {sorted(set(outcomes))}"] if attack.codes.isdisjoint(outcomes) and attack.codes else []),
    ]
