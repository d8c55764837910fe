"""The ledger accepts a correct run and detects every kind of violation."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from astraflow.contract.batches import Batch, Row, StepReport
from astraflow.contract.ids import BatchId, FlowId, GroupId, NodeId, PolicyId, PromptId, TaskId, Version
from astraflow.contract.reports.report import Report
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.token_columns import TokenColumn
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.contract.weights import Manifest, VersionNotice
from astraflow.recipe.loading import load_recipe
from astraflow.trainer.backends.base import Backend
from astraflow.weights.tensors import build_layout
from soak.ledger import Ledger
from soak.results import identity
from soak.rules import Invariant, Rules, Violation
from soak.scenario import RECIPE
from tests import make
from tests.snapshots import snapshot_of

SOLVER = PolicyId("solver")
FAILURE = Failure(boundary=Boundary.ENGINE, message="out of order")
PROMPTS, MEMBERS, GROUPS, MAX_STALENESS = 3, 2, 2, 1
RULES = Rules(
    load_recipe(
        str(RECIPE),
        [
            f"flows.solve.dataset.size={PROMPTS}",
            f"flows.solve.group_size={MEMBERS}",
            f"policies.solver.batch_groups={GROUPS}",
            f"policies.solver.max_staleness={MAX_STALENESS}",
        ],
    )
)


class LedgerScenario:
    """A run of the flow `solve`, reported to a ledger event by event."""

    def __init__(self) -> None:
        self.ledger = Ledger(RULES, now=lambda: 0.0)
        self.trainer: Backend = RULES.backend(SOLVER)
        self.steps = 0
        self.groups = 0

    def issue(self, *, prompt: int | None = None) -> int:
        """Leases the next group as a whole."""
        number, self.groups = self.groups, self.groups + 1
        self.lease(number, number % PROMPTS if prompt is None else prompt)
        return number

    def lease(self, group: int, prompt: int) -> None:
        shared_prompt = Prompt(id=PromptId(f"scripted:{prompt}"), fields={})
        tasks = [make.task(flow="solve", group=group, member=n, prompt_given=shared_prompt) for n in range(MEMBERS)]
        self.ledger.leased(tasks)

    def push(self, group: int, *, version: int = 0, tokens: int = 5, outcome: str | None = "accepted") -> None:
        """Pushes all members of a group; None for an answer that is lost."""
        episodes = [episode(group, member, version=version, tokens=tokens) for member in range(MEMBERS)]
        self.ledger.pushed(episodes)
        if outcome is not None:
            self.ledger.push_answered(episodes, [outcome] * MEMBERS)

    def batch(self, groups: Sequence[int], *, version: int = 0, tokens: int = 5) -> Batch:
        rows = (row(group, member, version=version, tokens=tokens) for group in groups for member in range(MEMBERS))
        return Batch(
            id=BatchId(f"solver:{self.steps}"),
            policy=SOLVER,
            version=Version(self.steps),
            is_redelivered=False,
            rows=tuple(rows),
        )

    def learn(self, batch: Batch) -> None:
        """Delivers, trains, publishes and acknowledges a batch."""
        self.ledger.delivered(batch)
        self.trainer.step(batch)
        self.steps += 1
        self.publish()
        self.acknowledge(batch)

    def acknowledge(self, batch: Batch, *, is_first: bool = True) -> None:
        version = Version(int(batch.id.rpartition(":")[2]) + 1)
        report = StepReport(batch=batch.id, policy=SOLVER, version=version, wait_s=0, compute_s=0, publish_s=0)
        self.ledger.step_answered(report, is_first=is_first)

    def publish(self, *, is_new: bool = True) -> None:
        self.ledger.publish_asked(self.manifest())
        self.ledger.publish_answered(SOLVER, Version(self.steps), is_new=is_new)

    def manifest(self) -> Manifest:
        return build_layout(snapshot_of(self.trainer).tensors, policy=SOLVER, version=Version(self.steps))[0]

    def groups_at_once(self, count: int, *, version: int = 0) -> list[int]:
        """Issues, runs and accepts groups."""
        numbers = [self.issue() for _ in range(count)]
        for number in numbers:
            self.push(number, version=version)
        return numbers

    def end(self, *, buffered: int = 0, stale: int = 0, failed: int = 0) -> list[Violation]:
        """Returns the violations at the end, for this report of dataflow."""
        return [*self.ledger.violations, *self.ledger.check_end(self.report(buffered, stale, failed))]

    def report(self, buffered: int = 0, stale: int = 0, failed: int = 0) -> Report:
        flow = replace(
            make.flow_report("solve", issued=self.groups, dropped=0),
            open=0,
            admitted=self.groups - failed,
            dropped={"failed": failed},
        )
        stream = make.stream_report(
            steps=self.steps,
            batch_groups=GROUPS,
            admitted=self.groups - failed,
            buffered=buffered,
            trained=GROUPS * self.steps,
            dropped={"stale": stale},
        )
        return make.report(stream, flows=(flow,))


def task_id(group: int, member: int) -> TaskId:
    return TaskId(f"solve:{group}/{member}")


def episode(group: int, member: int, *, version: int = 0, tokens: int = 5) -> Episode:
    return make.episode(task_id(group, member), version=version, model_tokens=tokens)


def row(group: int, member: int, *, version: int = 0, tokens: int = 5) -> Row:
    return Row(
        group=GroupId(f"solve:{group}"),
        task=task_id(group, member),
        node=NodeId("node-1"),
        trajectory=episode(group, member, version=version, tokens=tokens).trajectories[0],
    )


def broken(violations: list[Violation]) -> set[Invariant]:
    return {violation.promise for violation in violations}


@pytest.fixture
def scenario() -> LedgerScenario:
    """Run after two steps, made of groups 0 to 3, with group 4 in the buffer."""
    scenario = LedgerScenario()
    scenario.publish()
    for _ in range(2):
        scenario.learn(scenario.batch(scenario.groups_at_once(GROUPS)))
    scenario.groups_at_once(1, version=2)
    return scenario


def test_a_correct_run_has_no_violations(scenario: LedgerScenario) -> None:
    assert scenario.end(buffered=1) == []
    assert scenario.ledger.steps()[SOLVER] == 2


def test_calls_without_an_answer_allow_both_results(scenario: LedgerScenario) -> None:
    unheard, rerun = scenario.issue(), scenario.issue()
    scenario.push(unheard, version=2, outcome=None)
    scenario.push(unheard, version=2, outcome="duplicate")
    scenario.push(rerun, version=1, outcome=None)
    scenario.push(rerun, version=2, outcome=None)
    batch = scenario.batch([4, unheard], version=2)
    scenario.ledger.delivered(batch)
    scenario.ledger.delivered(replace(batch, is_redelivered=True))
    scenario.trainer.step(batch)
    scenario.steps += 1
    scenario.acknowledge(batch, is_first=False)
    assert scenario.end(buffered=1) == []
    assert scenario.end(stale=1) == [], "with version 1 it would be too old"
    assert scenario.ledger.lineages[SOLVER].redelivered == 1


def test_a_missing_group_is_a_lost_group(scenario: LedgerScenario) -> None:
    assert broken(scenario.end(buffered=0)) == {Invariant.LOST}


def test_dropping_a_fresh_group_as_stale_is_a_loss(scenario: LedgerScenario) -> None:
    assert broken(scenario.end(stale=1)) == {Invariant.LOST}


def test_a_share_dropped_for_another_reason_is_accounted_for(scenario: LedgerScenario) -> None:
    report = scenario.report(buffered=0)
    shed = make.changed_stream(report.streams[0], dropped={"full": 1})
    assert list(scenario.ledger.check_end(replace(report, streams=(shed,)))) == []


def test_a_group_with_too_few_results_is_dropped_as_failed(scenario: LedgerScenario) -> None:
    number = scenario.issue()
    failures = [replace(episode(number, member), trajectories=(), failure=FAILURE) for member in range(MEMBERS)]
    scenario.ledger.pushed(failures)
    scenario.ledger.push_answered(failures, ["failed_engine"] * MEMBERS)
    assert scenario.end(buffered=1, failed=1) == []
    assert broken(scenario.end(buffered=2)) == {Invariant.LOST}


def test_a_task_without_any_result_is_lost(scenario: LedgerScenario) -> None:
    scenario.issue()
    assert Invariant.LOST in broken(scenario.end(buffered=2))


def test_a_result_refused_as_unknown_is_lost(scenario: LedgerScenario) -> None:
    scenario.push(scenario.issue(), version=2, outcome="unknown")
    assert Invariant.LOST in broken(scenario.ledger.violations)


def test_a_group_in_two_batches_is_a_violation(scenario: LedgerScenario) -> None:
    scenario.learn(scenario.batch([4, 0], version=0))
    assert Invariant.TWICE in broken(scenario.ledger.violations)


def test_a_batch_served_after_the_next_one_is_a_violation(scenario: LedgerScenario) -> None:
    scenario.ledger.delivered(replace(scenario.batch([0, 1]), id=BatchId("solver:0")))
    assert broken(scenario.ledger.violations) == {Invariant.TWICE}


def test_a_batch_may_come_again_after_the_next_one_until_it_is_acknowledged(scenario: LedgerScenario) -> None:
    scenario.push(scenario.issue(), version=2)
    ahead = scenario.batch([4, 5], version=2)
    behind = replace(scenario.batch([6, 7], version=2), id=BatchId("solver:3"), version=Version(3))
    for batch in (ahead, behind, ahead):
        scenario.ledger.delivered(batch)
    assert Invariant.TWICE not in broken(scenario.ledger.violations)
    assert scenario.ledger.steps()[SOLVER] == 2
    scenario.acknowledge(ahead)
    scenario.ledger.delivered(ahead)
    assert Invariant.TWICE in broken(scenario.ledger.violations)


def test_two_accepted_results_of_one_task_are_a_violation(scenario: LedgerScenario) -> None:
    scenario.push(4, version=2, tokens=6)
    assert broken(scenario.ledger.violations) == {Invariant.TWICE}


def test_two_first_acknowledgements_of_a_step_are_a_violation(scenario: LedgerScenario) -> None:
    scenario.acknowledge(replace(scenario.batch([0, 1]), id=BatchId("solver:1")))
    assert broken(scenario.ledger.violations) == {Invariant.TWICE}


def test_rows_that_differ_from_the_pushed_result_are_a_violation(scenario: LedgerScenario) -> None:
    scenario.push(scenario.issue(), version=2)
    scenario.learn(scenario.batch([4, 5], version=2, tokens=7))
    assert Invariant.CONTENT in broken(scenario.ledger.violations)


def test_a_redelivered_batch_that_differs_is_a_violation(scenario: LedgerScenario) -> None:
    scenario.push(scenario.issue(), version=2)
    batch = scenario.batch([4, 5], version=2)
    scenario.ledger.delivered(batch)
    scenario.ledger.delivered(replace(batch, rows=batch.rows[::-1]))
    assert broken(scenario.ledger.violations) == {Invariant.CONTENT}


def test_an_accepted_member_missing_in_the_batch_is_a_violation(scenario: LedgerScenario) -> None:
    scenario.push(scenario.issue(), version=2)
    batch = scenario.batch([4, 5], version=2)
    scenario.ledger.delivered(replace(batch, rows=batch.rows[1:]))
    assert broken(scenario.ledger.violations) == {Invariant.LOST}


@pytest.mark.parametrize("version", [0, 3])
def test_rows_beyond_the_bound_or_of_a_future_version_are_a_violation(scenario: LedgerScenario, version: int) -> None:
    numbers = [scenario.issue(), scenario.issue()]
    for number in numbers:
        scenario.push(number, version=version)
    scenario.ledger.delivered(scenario.batch(numbers, version=version))
    assert broken(scenario.ledger.violations) == {Invariant.STALE}


def test_weights_that_do_not_follow_from_the_batches_are_a_violation() -> None:
    scenario = LedgerScenario()
    batch = scenario.batch(scenario.groups_at_once(GROUPS))
    scenario.ledger.delivered(batch)
    for _ in range(2):  # trained twice, published once
        scenario.trainer.step(batch)
    scenario.steps += 1
    scenario.publish()
    assert broken(scenario.ledger.violations) == {Invariant.VERSIONS}


def test_repeated_new_versions_are_a_violation(scenario: LedgerScenario) -> None:
    scenario.publish(is_new=False)
    assert scenario.ledger.violations == []
    scenario.publish()
    assert broken(scenario.ledger.violations) == {Invariant.VERSIONS}


def test_missing_and_changed_versions_of_the_store_are_a_violation(scenario: LedgerScenario) -> None:
    lineage = scenario.ledger.lineages[SOLVER]
    kept = [notice(version, lineage.expected(Version(version))) for version in range(3)]
    published = lineage.published
    assert list(scenario.ledger.check_stored_versions(SOLVER, kept, published)) == []
    assert broken(list(scenario.ledger.check_stored_versions(SOLVER, kept[:-1], published))) == {Invariant.VERSIONS}
    assert broken(list(scenario.ledger.check_stored_versions(SOLVER, kept[1:], published))) == {Invariant.VERSIONS}
    assert broken(list(scenario.ledger.check_stored_versions(SOLVER, [*kept[:2], notice(2, b"other")], published))) == {
        Invariant.VERSIONS
    }


def test_repeated_and_skipped_prompts_are_a_violation() -> None:
    scenario = LedgerScenario()
    for prompt in (0, 1, 1):
        scenario.push(scenario.issue(prompt=prompt))
    assert Invariant.PROMPTS in broken(scenario.end(buffered=3))
    scenario = LedgerScenario()
    scenario.groups_at_once(2)
    scenario.groups += 1
    assert broken(list(scenario.ledger.results.check_prompts(FlowId("solve"), 3))) == {Invariant.PROMPTS}


def test_a_group_that_changes_its_prompt_is_a_violation(scenario: LedgerScenario) -> None:
    scenario.lease(4, 4 % PROMPTS)
    assert scenario.ledger.violations == []
    scenario.lease(4, 5 % PROMPTS)
    assert broken(scenario.ledger.violations) == {Invariant.PROMPTS}


def test_unbalanced_and_outdated_reports_are_a_violation(scenario: LedgerScenario) -> None:
    honest = scenario.report(buffered=1)
    steps = scenario.ledger.steps()
    assert list(scenario.ledger.check_report(honest, steps_before=steps)) == []
    assert broken(list(scenario.ledger.check_report(scenario.report(), steps_before=steps))) == {Invariant.BALANCE}
    ahead = {**steps, SOLVER: 3}
    assert broken(list(scenario.ledger.check_report(honest, steps_before=ahead))) == {Invariant.LOST}


def notice(version: int, root_hash: bytes) -> VersionNotice:
    return VersionNotice(
        policy=SOLVER, version=Version(version), root_hash=root_hash, full_bytes=1, delta_bytes=0, published_at=0.0
    )


def test_rows_are_compared_with_their_recorded_columns_but_without_padding() -> None:
    plain = make.trajectory()
    tokens = plain.tokens[plain.loss_mask()].astype("<i4")
    kept = replace(plain, token_columns={TokenColumn.SUPPORT: tokens[:, None]})
    padded = np.stack([tokens, np.full(5, -1, "<i4")], 1)
    other = np.stack([tokens, np.full(5, 90, "<i4")], 1)
    top = {
        TokenColumn.TOP_TOKENS: np.full((5, 2), -1, "<i4"),
        TokenColumn.TOP_LOGPROBS: np.full((5, 2), -np.inf, "<f2"),
    }

    assert identity(kept) == identity(replace(kept, token_columns={TokenColumn.SUPPORT: padded, **top}))
    assert (
        len({identity(plain), identity(kept), identity(replace(kept, token_columns={TokenColumn.SUPPORT: other}))}) == 3
    )
