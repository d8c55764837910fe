"""One node credential cannot stop a run: honest nodes and the trainer go on, counts balance, the cause is an event."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from astraflow.contract.record_kinds import RecordKind
from tests.hostile.attacks import ACCEPTED, ATTACKS, Attack
from tests.hostile.peer import HostileNode, events_of, hostile_node
from tests.system.processes import RunningRun, assert_balanced, running

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

AT_ONCE = 6
"""Attacks at the same time, each by a node and a pool of its own: one after another, they take three times as long."""


async def test_nothing_that_one_node_sends_stops_a_run(tmp_path: Path, forked_programs: None) -> None:
    options = ("--no-web", "--set", "stop.reward=2", "--set", "stop.steps=100000")
    async with running("reverse", tmp_path / "run", *options) as run:
        await run.steps_more(3)
        pids = run.pids()
        problems: dict[str, list[str]] = {}
        for number, attacks in enumerate(batches()):
            problems |= await problems_after(attacks, run, f"hostile-{number}")
        assert problems == {}
        assert run.pids() == pids, "a process was restarted"


def batches() -> list[list[Attack]]:
    """Returns the attacks that run at the same time."""
    together = [attack for attack in ATTACKS if not attack.is_alone]
    alone = [[attack] for attack in ATTACKS if attack.is_alone]
    return [together[first : first + AT_ONCE] for first in range(0, len(together), AT_ONCE)] + alone


async def problems_after(attacks: Sequence[Attack], run: RunningRun, prefix: str) -> dict[str, list[str]]:
    """Lets nodes attack a run at the same time; returns what is wrong with the run afterwards, by attack."""
    async with AsyncExitStack() as stack:
        names = [f"{prefix}-{number}" for number in range(len(attacks))]  # what a pool did before limits its share
        nodes = [await stack.enter_async_context(hostile_node(run, name, pool=name)) for name in names]
        outcomes = await asyncio.gather(*(attack.act(node) for attack, node in zip(attacks, nodes, strict=True)))
        assert_balanced(await run.steps_more(2))
        faults = [await _faults(*each) for each in zip(attacks, nodes, outcomes, strict=True)]
    return {attack.name: fault for attack, fault in zip(attacks, faults, strict=True) if fault}


async def _faults(attack: Attack, node: HostileNode, outcomes: Sequence[str]) -> list[str]:
    events = await events_of(node.run, RecordKind(attack.event)) if attack.event else []
    is_named = any(event.subject.startswith(node.name) for event in events)
    return [
        *(["a result counts"] if ACCEPTED in outcomes and not attack.may_count else []),
        *(["no event names the node"] if attack.event and not is_named else []),
        *([f"refused as {sorted(set(outcomes))}"] if attack.codes.isdisjoint(outcomes) and attack.codes else []),
    ]
