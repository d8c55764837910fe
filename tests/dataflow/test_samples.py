"""Trajectory samples: they survive restarts, can be filtered by attributes, and are paged both ways."""

import asyncio
import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from astraflow.archive import samples as sample_lookups
from astraflow.archive.connection import open_read_only
from astraflow.archive.samples import bin_width, find_groups, find_rewards, find_sample_index, find_trajectories
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, GroupId, NodeId, PolicyId, TaskId
from astraflow.contract.reports.queries import (
    GroupQuery,
    RewardQuery,
    SampledPrompt,
    SampleIndex,
    SampleIndexQuery,
    TrajectoryPage,
    TrajectoryQuery,
)
from astraflow.contract.rollouts.agent_calls import CallOutcome
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.spans import Ending
from astraflow.contract.rollouts.tasks import Group
from astraflow.contract.rollouts.timelines import Hop
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.dataflow.history.archive import Archive
from astraflow.dataflow.history.samples import TrajectorySamples
from tests import make
from tests.errors import raises_code
from tests.fakes.agent_session import agent_trajectories
from tests.fakes.clock import ManualClock

pytestmark = pytest.mark.anyio

SOLVER = PolicyId("solver")


def opened(folder: Path, *, limit: int = 100, limit_bytes: int = 10**9) -> tuple[Archive, TrajectorySamples]:
    archive = Archive(folder / "history.sqlite", clock=ManualClock())
    return archive, TrajectorySamples(archive, limit=limit, limit_bytes=limit_bytes)


def group(
    number: int, rewards: tuple[float | None, ...] = (1.0, 0.0), *, text: str = "answer", node: str = "node-1"
) -> Group:
    """Returns a group whose members have these rewards; None for a failed member."""
    name = GroupId(f"train:{number}")
    members = []
    for member, reward in enumerate(rewards):
        task = TaskId(f"{name}/{member}")
        if reward is None:
            failure = Failure(boundary=Boundary.ENGINE, message="device 3 lost")
            about: dict[str, Any] = {"task": task, "node": NodeId(node), "duration_s": 2.0, "attempt": 2}
            members.append(Episode(trajectories=(), failure=failure, **about))
            continue
        written = replace(
            make.trajectory(reward=reward, version=number),
            prompt_text=text and f"prompt {number}",
            completion_text=text and f"{text} {number}.{member}",
            metrics={"turns": 3.0},
        )
        members.append(Episode(task=task, node=NodeId(node), trajectories=(written,), duration_s=0.5))
    return Group(id=name, flow=FlowId("train"), prompt=make.prompt(number), episodes=tuple(members))


async def task_names(samples: TrajectorySamples, **query: Any) -> list[str]:
    return [sample.task for sample in (await samples.page(TrajectoryQuery(**query))).trajectories]


def tasks(page: TrajectoryPage) -> list[str]:
    return [sample.task.removeprefix("train:") for sample in page.trajectories]


async def test_a_sample_is_read_back_completely(tmp_path: Path) -> None:
    archive, samples = opened(tmp_path)
    samples.add(group(3), {SOLVER: "buffered"}, at=12.0)
    samples.set_outcome(SOLVER, GroupId("train:3"), outcome="trained", step=7)
    newest, oldest = (await samples.page(TrajectoryQuery())).trajectories
    assert (newest.task, oldest.task, newest.ordinal, oldest.ordinal) == ("train:3/1", "train:3/0", 2, 1)
    assert (newest.outcome, newest.step, newest.at, newest.reward) == ("trained", 7, 12.0, 0.0)
    assert (newest.prompt_text, newest.completion_text, newest.reference_text) == ("prompt 3", "answer 3.1", "dcba")
    assert (newest.member, newest.attempt, newest.duration_s, newest.metrics) == (1, 0, 0.5, {"turns": 3.0})
    assert [span.version for span in newest.spans] == [None, 3]
    archive.close()


async def test_hops_and_the_times_of_batch_and_step_are_read_back(tmp_path: Path) -> None:
    archive, samples = opened(tmp_path)
    hop = Hop(name="rl.tool", began_at=10.5, duration_s=0.25, detail="tool calculator", error="ToolError: no")
    member, failed = group(3, (1.0, None)).episodes
    episodes = (replace(member, hops=(hop,)), replace(failed, hops=(hop, hop)))
    samples.add(replace(group(3), episodes=episodes), {SOLVER: "buffered"}, at=12.0)
    samples.set_batched(SOLVER, [GroupId("train:3"), GroupId("train:4")], at=13.0)
    samples.set_outcome(SOLVER, GroupId("train:3"), outcome="trained", step=7, trained_at=14.0)
    samples.set_batched(SOLVER, [GroupId("train:3")], at=99.0)
    newest, oldest = (await samples.page(TrajectoryQuery())).trajectories
    assert (oldest.hops, newest.hops) == ((hop,), (hop, hop))
    assert (oldest.batched_at, oldest.trained_at) == (13.0, 14.0)
    archive.close()


def interaction(
    number: int, *, role: str = "", ending: Ending | None = None, terms: dict[str, float] | None = None
) -> Group:
    """Returns a group of one episode with a parent and its child."""
    parent, child = (make.trajectory(reward=reward, version=1) for reward in (1.0, 0.5))
    model_tokens = child.model_tokens
    extra: dict[str, Any] = {"role": role, "ending": ending, "reward_terms": terms or {}}
    trajectories = (
        replace(parent, prompt_text="p", completion_text="root"),
        replace(
            child,
            prompt_text="p",
            completion_text="x" * model_tokens,
            parent=0,
            parent_turn=0,
            turn_rewards=(0.5,),
            labels={"state": "a key"},
            token_ends=tuple(range(2, model_tokens + 2)),
            **extra,
        ),
    )
    episode = Episode(task=TaskId(f"train:{number}/0"), node=NodeId("node-1"), trajectories=trajectories)
    return Group(id=GroupId(f"train:{number}"), flow=FlowId("train"), prompt=make.prompt(number), episodes=(episode,))


async def test_the_fields_of_an_interaction_and_its_tokens_are_read_back(tmp_path: Path) -> None:
    archive, samples = opened(tmp_path)
    stored_group = interaction(1, role="solver.retry", ending=Ending.WON, terms={"format": 0.25})
    samples.add(stored_group, {SOLVER: "buffered"}, at=1.0)
    child, root = (await samples.page(TrajectoryQuery(task="train:1/0", with_tokens=True))).trajectories
    (listed, _) = (await samples.page(TrajectoryQuery())).trajectories
    archive.close()
    source = stored_group.episodes[0].trajectories[1]
    assert (root.index, root.parent, root.ending, root.token_ends) == (0, None, None, ())
    assert (child.index, child.parent, child.parent_turn, child.role) == (1, 0, 0, "solver.retry")
    assert (child.turn_rewards, child.reward_terms, child.labels) == ((0.5,), {"format": 0.25}, {"state": "a key"})
    assert (child.ending, child.token_ends) == (Ending.WON, source.token_ends)
    assert child.logprobs == tuple(source.logprobs.tolist())
    assert listed == replace(child, token_ends=(), logprobs=(), token_ids=()), "a list does not carry the arrays"


async def test_tokens_count_for_the_size_limit_and_misfitting_ones_are_left_out(tmp_path: Path) -> None:
    archive, samples = opened(tmp_path)
    stored_group = interaction(1)
    episode = stored_group.episodes[0]
    root, child = episode.trajectories
    long_ends = tuple(range(1, child.model_tokens + 2))
    misfit = replace(episode, trajectories=(root, replace(child, token_ends=long_ends)))
    samples.add(stored_group, {SOLVER: "buffered"}, at=1.0)
    samples.add(replace(stored_group, id=GroupId("train:2"), episodes=(misfit,)), {SOLVER: "buffered"}, at=1.0)
    misfitting, _, fitting, _ = (await samples.page(TrajectoryQuery(with_tokens=True))).trajectories
    sizes = [size for (size,) in archive.rows("select size_bytes from samples order by ordinal")]
    archive.close()
    assert (misfitting.token_ends, len(fitting.token_ends)) == ((), child.model_tokens)
    assert misfitting.token_ids == fitting.token_ids == tuple(child.tokens.tolist())
    assert misfitting.logprobs == fitting.logprobs == tuple(child.logprobs.tolist())
    assert sizes[1] - sizes[3] == 7 * child.model_tokens


async def test_interactions_are_found_by_ending_role_and_reward_term(tmp_path: Path) -> None:
    archive, samples = opened(tmp_path)
    samples.add(interaction(1, role="solver", ending=Ending.WON, terms={"a": 1.0}), {SOLVER: "buffered"}, at=1.0)
    samples.add(interaction(2, role="solver", ending=Ending.LOST, terms={"a": 0.25}), {SOLVER: "buffered"}, at=1.0)
    samples.add(
        interaction(3, role='it\'s "x"', ending=Ending.WON, terms={'b"$.]': -2.0, "nan": math.nan}),
        {SOLVER: "buffered"},
        at=1.0,
    )
    queries: list[dict[str, Any]] = [
        {"ending": Ending.WON},
        {"role": "solver"},
        {"role": 'it\'s "x"'},
        {"term": "a"},
        {"term": "a", "min_term": 0.5},
        {"term": "a", "max_term": 0.5},
        {"term": 'b"$.]', "min_term": -2.0, "max_term": -2.0},
        {"term": "nan"},
        {"ending": Ending.WON, "term": "a", "group": "train:1"},
    ]
    matching_tasks = [[name.partition("/")[0][6:] for name in await task_names(samples, **query)] for query in queries]
    everything = await samples.rewards(RewardQuery(matching=TrajectoryQuery()))
    of_term = await samples.rewards(RewardQuery(matching=TrajectoryQuery(), term="a"))
    won = await samples.rewards(RewardQuery(matching=TrajectoryQuery(ending=Ending.WON), term="nothing"))
    archive.close()
    assert matching_tasks == [["3", "1"], ["2", "1"], ["3"], ["2", "1"], ["1"], ["2"], ["3"], [], ["1"]]
    assert everything.endings == {"won": 2, "lost": 1}
    assert everything.roles == {"solver": 2, 'it\'s "x"': 1}
    assert everything.terms == {"a": 2, 'b"$.]': 1}
    assert sum(bin_.trajectories for bin_ in everything.bins) == 6
    assert [(bin_.lowest, bin_.trajectories) for bin_ in of_term.bins] == [(0.25, 1), (1.0, 1)]
    assert (won.bins, won.endings, won.terms) == ((), {"won": 2}, {"a": 1, 'b"$.]': 1})


def agent_group(number: int) -> Group:
    """Returns a group with one session of an agent."""
    name = GroupId(f"train:{number}")
    session = Episode(task=TaskId(f"{name}/0"), node=NodeId("n"), trajectories=agent_trajectories())
    return Group(id=name, flow=FlowId("train"), prompt=make.prompt(number), episodes=(session,))


async def test_recorded_calls_are_stored_and_returned_on_request(tmp_path: Path) -> None:
    archive, samples = opened(tmp_path)
    samples.add(group(1), {SOLVER: "buffered"}, at=1.0)
    samples.add(agent_group(2), {SOLVER: "buffered"}, at=1.0)
    plain = (await samples.page(TrajectoryQuery())).trajectories
    whole = (await samples.page(TrajectoryQuery(task="train:2/0", with_calls=True))).trajectories
    refused = await samples.page(TrajectoryQuery(call=CallOutcome.REFUSED, with_calls=True))
    aborted = await samples.page(TrajectoryQuery(call=CallOutcome.ABORTED, group="train:1"))
    counts = await samples.rewards(RewardQuery(matching=TrajectoryQuery()))
    sizes = dict(archive.rows("select ordinal, size_bytes from samples"))
    blocks = dict(archive.rows("select ordinal, length(calls_body) from samples"))
    archive.close()

    trajectories = agent_trajectories()
    assert all(sample.calls == () for sample in plain)
    assert [sample.calls for sample in whole] == [trajectory.calls for trajectory in reversed(trajectories)]
    assert whole[-1].call_outcomes == {"answered": 3, "replayed": 1, "aborted": 1, "refused": 1}
    assert [sample.index for sample in refused.trajectories] == [0]
    assert aborted.trajectories == ()
    assert counts.calls == {"answered": 3, "replayed": 1, "aborted": 1, "refused": 1}
    assert blocks[1] == 0 and blocks[3] > 0
    assert sizes[3] > blocks[3] + len(trajectories[0].completion_text)


async def test_a_page_holds_fewer_trajectories_when_their_calls_are_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_lookups, "PAGE_BYTES", 12_000)
    archive, samples = opened(tmp_path)
    samples.add(agent_group(1), {SOLVER: "buffered"}, at=1.0)
    without = await samples.page(TrajectoryQuery())
    with_calls = await samples.page(TrajectoryQuery(with_calls=True))
    archive.close()
    assert (len(without.trajectories), without.has_older) == (3, False)
    assert 0 < len(with_calls.trajectories) < 3 and with_calls.has_older


async def test_an_archive_without_the_table_of_groups_is_read_and_continued(tmp_path: Path) -> None:
    archive, samples = opened(tmp_path)
    samples.add(group(1), {SOLVER: "buffered"}, at=1.0)
    archive.close()
    with closing(sqlite3.connect(tmp_path / "history.sqlite")) as database:
        database.execute("drop table sampled_groups")
        database.execute("pragma user_version = 7")
        database.commit()
    with closing(open_read_only(tmp_path / "history.sqlite")) as database:
        assert len(find_trajectories(database, TrajectoryQuery(with_tokens=True, with_calls=True)).trajectories) == 2
        assert [group.prompt for group in find_groups(database, GroupQuery()).groups] == [""]
        assert find_groups(database, GroupQuery(prompt="letters:1")).groups == ()
        assert find_sample_index(database, SampleIndexQuery()) == SampleIndex(steps=(), prompts=())

    archive, samples = opened(tmp_path)
    samples.add(interaction(2, ending=Ending.WON), {SOLVER: "buffered"}, at=2.0)
    samples.add(agent_group(3), {SOLVER: "buffered"}, at=3.0)
    assert await task_names(samples) == ["train:3/0"] * 3 + ["train:2/0", "train:2/0", "train:1/1", "train:1/0"]
    assert await task_names(samples, ending=Ending.WON) == ["train:2/0"]
    assert await task_names(samples, call=CallOutcome.REFUSED) == ["train:3/0"]
    archive.close()
    assert not (tmp_path / "history.unreadable.sqlite").exists()


async def test_samples_survive_a_restart_and_can_still_change(tmp_path: Path) -> None:
    archive, samples = opened(tmp_path)
    samples.add(group(1), {SOLVER: "buffered"}, at=1.0)
    samples.add(group(2), {SOLVER: "buffered"}, at=1.0)
    samples.add(group(3), {SOLVER: "informative"}, at=1.0)
    archive.close()
    archive, samples = opened(tmp_path)
    samples.mark_unrecorded({SOLVER: [GroupId("train:1")]})
    samples.set_outcome(SOLVER, GroupId("train:1"), outcome="trained", step=0)
    outcomes = {sample.group: sample.outcome for sample in (await samples.page(TrajectoryQuery())).trajectories}
    assert outcomes == {"train:1": "trained", "train:2": "unrecorded", "train:3": "informative"}
    samples.add(group(4), {SOLVER: "buffered"}, at=2.0)
    assert (await samples.page(TrajectoryQuery(limit=1))).trajectories[0].ordinal == 8
    archive.close()


async def test_a_group_received_again_after_a_crash_replaces_the_first_copy(tmp_path: Path) -> None:
    archive, samples = opened(tmp_path)
    samples.add(group(1), {SOLVER: "buffered"}, at=1.0)
    samples.add(group(1), {SOLVER: "buffered"}, at=2.0)
    assert await task_names(samples) == ["train:1/1", "train:1/0"]
    archive.close()


async def test_failed_members_are_returned_beside_the_others(tmp_path: Path) -> None:
    archive, samples = opened(tmp_path)
    samples.add(group(1, (1.0, None)), {SOLVER: "buffered"}, at=1.0)
    samples.add(group(2, (None, None)), {SOLVER: "failed"}, at=1.0)
    samples.add(group(3, (1.0, None), text=""), {SOLVER: "buffered"}, at=1.0)
    failed = (await samples.page(TrajectoryQuery(is_failed=True))).trajectories
    assert [sample.task for sample in failed] == ["train:2/1", "train:2/0", "train:1/1"]
    assert failed[0].failure == Failure(boundary=Boundary.ENGINE, message="device 3 lost")
    assert (failed[0].policy, failed[0].outcome, failed[0].attempt, failed[0].duration_s) == (
        "solver",
        "failed",
        2,
        2.0,
    )
    assert await task_names(samples, is_failed=False) == ["train:1/0"]
    assert await task_names(samples, text="DEVICE 3", group="train:1") == ["train:1/1"]
    archive.close()


async def test_the_calls_of_a_failed_session_are_stored_for_one_of_its_policies(tmp_path: Path) -> None:
    archive, samples = opened(tmp_path)
    whole, calls = group(1, (None,)), agent_trajectories()[0].calls
    failed = replace(whole, episodes=(replace(whole.episodes[0], failed_calls=calls),))
    samples.add(failed, {SOLVER: "failed", PolicyId("critic"): "failed"}, at=1.0)
    page = (await samples.page(TrajectoryQuery(with_calls=True))).trajectories
    assert [(sample.policy, sample.calls) for sample in reversed(page)] == [("solver", calls), ("critic", ())]
    archive.close()


async def test_samples_are_found_by_their_attributes(tmp_path: Path) -> None:
    archive, samples = opened(tmp_path)
    for number in range(1, 5):
        stored_group = group(
            number, (number / 4, 0.0), text="50% done" if number == 2 else "other", node=f"node-{number}"
        )
        samples.add(stored_group, {SOLVER: "buffered"}, at=1.0)
        if number < 4:
            samples.set_outcome(SOLVER, stored_group.id, outcome="trained", step=10 * number)
    assert await task_names(samples, step=20) == ["train:2/1", "train:2/0"]
    assert await task_names(samples, first_step=20, last_step=29) == ["train:2/1", "train:2/0"]
    assert await task_names(samples, first_step=30) == ["train:3/1", "train:3/0"]
    assert await task_names(samples, outcome="buffered") == ["train:4/1", "train:4/0"]
    assert await task_names(samples, min_reward=0.5, max_reward=0.75) == ["train:3/0", "train:2/0"]
    assert await task_names(samples, text="0% D") == ["train:2/1", "train:2/0"]
    assert await task_names(samples, text="%") == ["train:2/1", "train:2/0"]
    assert await task_names(samples, text="prompt 3", node="node-3") == ["train:3/1", "train:3/0"]
    assert await task_names(samples, task="train:1/0", flow="train", policy="solver") == ["train:1/0"]
    assert await task_names(samples, is_truncated=True) == []
    assert await task_names(samples, policy="judge") == await task_names(samples, flow="evaluation") == []
    archive.close()


async def test_samples_are_paged_both_ways(tmp_path: Path) -> None:
    archive, samples = opened(tmp_path)
    for number in range(3):
        samples.add(group(number), {SOLVER: "buffered"}, at=1.0)
    first = await samples.page(TrajectoryQuery(limit=2))
    assert (tasks(first), first.has_older, first.has_newer) == (["2/1", "2/0"], True, False)
    second = await samples.page(TrajectoryQuery(limit=2, before=first.trajectories[-1].ordinal))
    assert (tasks(second), second.has_older, second.has_newer) == (["1/1", "1/0"], True, True)
    third = await samples.page(TrajectoryQuery(limit=2, before=second.trajectories[-1].ordinal))
    assert (tasks(third), third.has_older, third.has_newer) == (["0/1", "0/0"], False, True)
    back = await samples.page(TrajectoryQuery(limit=2, after=third.trajectories[0].ordinal))
    assert back == second
    newest = await samples.page(TrajectoryQuery(limit=2, after=back.trajectories[0].ordinal))
    assert (tasks(newest), newest.has_older, newest.has_newer) == (["2/1", "2/0"], True, False)
    archive.close()


async def test_pages_are_limited_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_lookups, "PAGE_BYTES", 5000)
    archive, samples = opened(tmp_path)
    for number in range(3):
        samples.add(group(number, (1.0,), text="x" * 3000), {SOLVER: "buffered"}, at=1.0)
    page = await samples.page(TrajectoryQuery())
    assert (len(page.trajectories), page.has_older) == (1, True)
    archive.close()


@pytest.mark.parametrize(("limit", "limit_bytes"), [(4, 10**9), (100, 4 * 700), (0, 10**9)])
async def test_the_oldest_samples_are_removed_by_count_and_size(tmp_path: Path, limit: int, limit_bytes: int) -> None:
    archive, samples = opened(tmp_path, limit=limit, limit_bytes=limit_bytes)
    for number in range(10):
        samples.add(group(number), {SOLVER: "buffered"}, at=1.0)
    expected = ["train:9/1", "train:9/0", "train:8/1", "train:8/0"] if limit else []
    assert await task_names(samples) == expected
    archive.close()
    archive, samples = opened(tmp_path, limit=limit, limit_bytes=limit_bytes)
    samples.add(group(10), {SOLVER: "buffered"}, at=1.0)
    assert await task_names(samples) == (["train:10/1", "train:10/0", *expected[:2]] if limit else [])
    archive.close()


def of_prompt(number: int, prompt: int) -> Group:
    return replace(group(number), prompt=make.prompt(prompt))


async def test_groups_of_early_steps_stay_over_restarts_while_the_newest_are_complete(tmp_path: Path) -> None:
    archive, samples = opened(tmp_path, limit=80)
    for step in range(1, 101):
        for number in range(4 * step, 4 * step + 4):
            samples.add(group(number), {SOLVER: "buffered"}, at=1.0)
        for number in range(4 * step, 4 * step + 4):
            samples.set_outcome(SOLVER, GroupId(f"train:{number}"), outcome="trained", step=step)
        if step == 50:
            archive.close()
            archive, samples = opened(tmp_path, limit=80)
    index = await samples.index(SampleIndexQuery(policy="solver", limit=1000))
    groups = {step: len((await samples.groups(GroupQuery(step=step))).groups) for step in index.steps}
    stored = [step for (step,) in archive.rows("select step from samples")]
    archive.close()

    assert {1, 2, 3, 4} < set(index.steps)
    assert (groups[1], groups[2], groups[99], groups[100]) == (2, 2, 4, 4)
    assert len(stored) == 80
    assert set(stored) == set(index.steps)


async def test_the_nearest_steps_with_samples_and_the_groups_of_a_prompt_are_found(tmp_path: Path) -> None:
    archive, samples = opened(tmp_path)
    for number, (prompt, step) in enumerate([(1, 3), (2, 3), (1, 9), (1, 40)]):
        samples.add(of_prompt(number, prompt), {SOLVER: "buffered"}, at=1.0)
        samples.set_outcome(SOLVER, GroupId(f"train:{number}"), outcome="trained", step=step)
    samples.add(of_prompt(7, 2), {SOLVER: "informative"}, at=1.0)
    near = await samples.index(SampleIndexQuery(near=10, limit=2))
    whole = await samples.index(SampleIndexQuery())
    other = await samples.index(SampleIndexQuery(policy="judge"))
    groups = (await samples.groups(GroupQuery(prompt=make.prompt(1).id))).groups
    archive.close()

    assert near.steps == (3, 9)
    assert whole.steps == (3, 9, 40)
    repeated = SampledPrompt(prompt=make.prompt(1).id, flow=FlowId("train"), steps=3, first=3, last=40)
    assert whole.prompts == (repeated,)
    assert other == SampleIndex(steps=(), prompts=())
    assert [(shown.step, shown.prompt, shown.version) for shown in groups] == [
        (40, make.prompt(1).id, None), (9, make.prompt(1).id, None), (3, make.prompt(1).id, None),
    ]  # fmt: skip


async def test_the_same_prompts_of_an_evaluation_stay_for_each_version(tmp_path: Path) -> None:
    archive, samples = opened(tmp_path, limit=40)
    for version in range(0, 200, 20):
        for prompt in range(4):
            number = 10 * version + prompt
            written = group(version, text="answer")
            evaluated = replace(written, id=GroupId(f"progress:{number}"), flow=FlowId("progress"))
            samples.add(replace(evaluated, prompt=make.prompt(prompt)), {SOLVER: "evaluated"}, at=1.0)
    index = await samples.index(SampleIndexQuery())
    groups = (await samples.groups(GroupQuery(prompt=index.prompts[0].prompt))).groups
    archive.close()

    assert index.steps == ()
    assert (index.prompts[0].flow, index.prompts[0].first, index.prompts[0].last) == ("progress", 0, 180)
    assert index.prompts[0].steps >= 5
    assert {0, 20, 180} <= {shown.version for shown in groups}


async def test_the_groups_of_a_step_have_their_statistics(tmp_path: Path) -> None:
    archive, samples = opened(tmp_path)
    for number, rewards in enumerate([(0.0, 1.0), (0.5, 0.5, None), (None,)]):
        samples.add(group(number, rewards), {SOLVER: "failed" if rewards == (None,) else "buffered"}, at=float(number))
    for number in (0, 1):
        samples.set_outcome(SOLVER, GroupId(f"train:{number}"), outcome="trained", step=4)
    page = await samples.groups(GroupQuery(step=4))
    newest, oldest = page.groups
    assert (newest.group, newest.trajectories, newest.failed, newest.reward_mean) == ("train:1", 2, 1, 0.5)
    assert (oldest.reward_min, oldest.reward_mean, oldest.reward_max) == (0.0, 0.5, 1.0)
    assert (oldest.outcome, oldest.step, oldest.at, oldest.truncated) == ("trained", 4, 0.0, 0)
    (failed,) = (await samples.groups(GroupQuery(outcome="failed", policy="solver", flow="train"))).groups
    assert (failed.trajectories, failed.failed, failed.reward_mean) == (0, 1, None)
    first = await samples.groups(GroupQuery(limit=1))
    rest = await samples.groups(GroupQuery(limit=5, before=first.groups[-1].ordinal))
    assert ([group.group for group in rest.groups], first.has_older, rest.has_older) == (
        ["train:1", "train:0"],
        True,
        False,
    )
    archive.close()


async def test_a_query_does_not_block_the_event_loop(tmp_path: Path) -> None:
    archive, samples = opened(tmp_path)
    samples.add(group(1), {SOLVER: "buffered"}, at=1.0)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    await samples.page(TrajectoryQuery())
    turning.cancel()
    assert turns > 1
    archive.close()


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"limit": 0}, "query.out_of_range"),
        ({"before": 1, "after": 1}, "query.contradictory"),
        ({"first_step": 2, "last_step": 1}, "query.contradictory"),
        ({"min_reward": 1.0, "max_reward": 0.0}, "query.contradictory"),
        ({"text": "x" * 1001}, "query.text_too_long"),
        ({"before": 2**63}, "query.out_of_range"),
        ({"min_term": 0.0}, "query.contradictory"),
        ({"term": "a", "min_term": 1.0, "max_term": 0.0}, "query.contradictory"),
    ],
)
def test_an_invalid_trajectory_query_is_refused(query: dict[str, Any], code: str) -> None:
    with raises_code(InvalidInput, code):
        TrajectoryQuery(**query)


async def test_the_bins_of_rewards_match_queries(tmp_path: Path) -> None:
    archive, samples = opened(tmp_path)
    samples.add(group(1, (0.0, 0.05, 0.62, None)), {SOLVER: "buffered"}, at=1.0)
    samples.add(group(2, (1.0, 1.0, 0.0)), {SOLVER: "informative"}, at=2.0)

    spread = await samples.rewards(RewardQuery(matching=TrajectoryQuery(), max_bins=12))
    dropped = await samples.rewards(RewardQuery(matching=TrajectoryQuery(outcome="informative")))
    nothing = await samples.rewards(RewardQuery(matching=TrajectoryQuery(text="nowhere")))
    first = await task_names(samples, min_reward=spread.bins[0].lowest, max_reward=spread.bins[0].highest)
    archive.close()

    assert spread.failed == 1
    assert [(bin_.trajectories, bin_.groups) for bin_ in spread.bins] == [(3, 2), (1, 1), (2, 1)]
    assert [(round(bin_.begin, 6), bin_.lowest, bin_.highest) for bin_ in spread.bins] == [
        (0.0, 0.0, 0.05),
        (0.6, 0.62, 0.62),
        (1.0, 1.0, 1.0),
    ]
    assert sorted(first) == ["train:1/0", "train:1/1", "train:2/2"]
    assert sum(bin_.trajectories for bin_ in dropped.bins) == 3
    assert (nothing.bins, nothing.failed) == ((), 0)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=12), st.integers(3, 40))
@example([1.7e308, -1.7e308, 0.0], 20)
@example([0.0, 5e-324], 20)
def test_any_stored_rewards_have_finite_bins(rewards: list[float], at_most: int) -> None:
    with TemporaryDirectory() as folder:
        archive, samples = opened(Path(folder))
        samples.add(group(1, tuple(rewards)), {SOLVER: "buffered"}, at=1.0)
        archive.close()
        with closing(open_read_only(Path(folder) / "history.sqlite")) as database:
            spread = find_rewards(database, RewardQuery(matching=TrajectoryQuery(), max_bins=at_most))
            (shown,) = find_groups(database, GroupQuery()).groups
    assert sum(bin_.trajectories for bin_ in spread.bins) == len(rewards)
    assert len(spread.bins) <= at_most
    figures = [(bin_.begin, bin_.end, bin_.lowest, bin_.highest) for bin_ in spread.bins]
    assert all(math.isfinite(figure) for figures_of_bin in figures for figure in figures_of_bin)
    assert shown.reward_mean is not None and math.isfinite(shown.reward_mean)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.integers(3, 40))
def test_the_number_of_bins_is_limited(rewards: list[float], at_most: int) -> None:
    low, high = min(rewards), max(rewards)
    width = bin_width(low, high, at_most=at_most)
    assert math.floor(high / width) - math.floor(low / width) + 1 <= at_most
