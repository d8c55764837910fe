"""Journal records of groups, episodes and batches, and recovery of a run from them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from astraflow.contract.ids import BatchId, FlowId, GroupId, PolicyId, PromptId, TaskId, Version
from astraflow.contract.reports.evaluations import EvaluationReport
from astraflow.contract.rollouts.partial_rollouts import PartialRollout
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.dataflow.admission.routing import RoutedGroup, route
from astraflow.dataflow.issuing.groups import OpenGroup, UnfinishedTask, parse_task_id
from astraflow.dataflow.serving.batches import ServedBatch
from astraflow.dataflow.storage.journal import Journal
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.codecs.data import decode_push, encode_push
from astraflow.wire.codecs.partial_rollouts import decode_partial_rollout, encode_partial_rollout
from astraflow.wire.pb import control_plane_pb2 as pb
from astraflow.wire.pb import data_plane_pb2 as data

_BatchedGroup: TypeAlias = tuple[str, bool, RoutedGroup]
"""A group of a batch: its sort key in the batch, whether it was trained before, and the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredRun:
    """State of a run read back from the journal."""

    open_groups: list[OpenGroup]
    buffered: dict[PolicyId, list[RoutedGroup]]
    """In order of arrival."""
    batches: dict[PolicyId, list[ServedBatch]]
    """Open batches, oldest first."""
    replayable: dict[PolicyId, list[RoutedGroup]]
    """Trained groups that may be trained again, in the order of their last training."""
    evaluations: list[EvaluationReport]
    """Rounds that ended, oldest first."""
    partials: list[PartialRollout]
    """Handed-back rollouts of unfinished tasks."""


class Records:
    """Writes journal changes. A group is deleted once no stream needs it, a payload once no group needs it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._needed: dict[GroupId, set[PolicyId]] = {}
        self._users: dict[int, set[GroupId]] = {}
        """Groups with results in a payload, by payload."""
        self._payloads: dict[GroupId, set[int]] = {}
        """Payloads with results of a group, by group."""
        self._sizes: dict[int, int] = {}
        """Size of each payload. Bytes."""
        self.held_bytes = 0
        """Size of all payloads: results in memory are views of them. Bytes."""
        self._unfinished: dict[GroupId, set[TaskId]] = {}
        """Tasks with a row in the table `unfinished`, by group."""
        self.last_round = 0
        """Highest number of an ended evaluation round, also of evaluations that the run no longer has."""

    def record_issued(self, group: OpenGroup) -> None:
        """Records an issued group."""
        body = json.dumps(
            {
                "prompt": group.prompt.id,
                "fields": dict(group.prompt.fields),
                "index": group.prompt_index,
                "size": group.size,
                "surplus_policies": sorted(group.surplus_policies),
                "served": dict(group.issued_for_versions),
                "pinned": dict(group.pinned),
            }
        )
        self._journal.put("insert into groups values (?, ?, ?)", group.id, group.flow, body)

    def record_accepted(self, episodes: Sequence[Episode], groups: Sequence[GroupId], *, raw: bytes | None) -> None:
        """Records results that count. groups: their groups. raw: their encoded push, stored unchanged if it holds
        exactly these results."""
        if episodes:
            body = encode_push(episodes[0].node, episodes) if raw is None else raw
            self._note_payload(self._journal.store_payload(body), set(groups), len(body))
        accepted = {episode.task for episode in episodes} if self._unfinished else set()
        for group in self._unfinished.keys() & groups:
            for task in self._unfinished[group] & accepted:
                self._unfinished[group].remove(task)
                self._journal.put("delete from unfinished where task = ?", task)

    def record_rescored(self, group: GroupId, episodes: Sequence[Episode]) -> None:
        """Records the results of a group after its group reward, in place of those that nodes pushed."""
        for number in self._payloads.pop(group, set()):
            self._leave_payload(number, group)
        for node in dict.fromkeys(episode.node for episode in episodes):
            body = encode_push(node, [episode for episode in episodes if episode.node == node])
            self._note_payload(self._journal.store_payload(body), {group}, len(body))

    def record_unfinished(self, member: UnfinishedTask) -> None:
        """Records a member without a result whose attempt failed, or whose partial rollout was stored or dropped."""
        self._unfinished.setdefault(member.group, set()).add(member.task)
        body = encode_partial_rollout(member.partial).SerializeToString() if member.partial else None
        statement = "insert or replace into unfinished values (?, ?, ?, ?)"
        self._journal.put(statement, member.task, member.group, member.attempt, body)

    def record_closed(self, group: GroupId, buffered_by: Iterable[PolicyId]) -> None:
        """Records a complete or abandoned group and the streams that buffer it; without any the group is deleted."""
        if self._unfinished.pop(group, None):
            self._journal.put("delete from unfinished where group_id = ?", group)
        self._needed[group] = set(buffered_by)
        for policy in self._needed[group]:
            self._journal.put("insert into routed values (?, ?, null, 0)", policy, group)
        self._forget_if_unneeded(group)

    def record_batch(self, policy: PolicyId, batch: ServedBatch) -> None:
        """Records a new batch."""
        self._journal.put("insert or replace into batches values (?, ?, ?)", batch.id, policy, int(batch.version))
        for ordinal, group in enumerate((*batch.fresh_groups, *batch.replayed)):
            sort_key = f"{batch.id}/{ordinal:06d}"
            self._journal.put(
                "update routed set batch = ? where policy = ? and group_id = ?", sort_key, policy, group.id
            )

    def record_trained(
        self, policy: PolicyId, batch: BatchId, *, replayable: Iterable[RoutedGroup], released: Iterable[RoutedGroup]
    ) -> None:
        """Records the acknowledgement of a batch; `replayable` groups stay to be trained again."""
        self._journal.put("delete from batches where id = ?", batch)
        for group in replayable:  # inserted again: rows are in the order in which groups became replayable
            self._journal.put("insert or replace into routed values (?, ?, null, 1)", policy, group.id)
        self.record_released(policy, released)

    def record_released(self, policy: PolicyId, groups: Iterable[RoutedGroup]) -> None:
        """Records that a stream no longer needs these groups."""
        for group in groups:
            self._journal.put("delete from routed where policy = ? and group_id = ?", policy, group.id)
            self._needed[group.id].discard(policy)
            self._forget_if_unneeded(group.id)

    def record_evaluation(self, report: EvaluationReport) -> None:
        """Records an ended round of an evaluation."""
        self.last_round = max(self.last_round, report.round)
        body = to_message(report, pb.EvaluationReport).SerializeToString()
        self._journal.put("insert into evaluations values (?, ?)", report.round, body)

    def recover(self) -> RecoveredRun:
        """Reads everything back."""
        groups = self._groups()
        self.last_round = max((row[0] for row in self._journal.rows("select round from evaluations")), default=0)
        waiting: dict[bool, dict[PolicyId, list[RoutedGroup]]] = {False: {}, True: {}}
        batched: dict[BatchId, list[_BatchedGroup]] = {}
        for policy, group_id, sort_key, is_trained in self._journal.rows("select * from routed order by rowid"):
            group = groups[GroupId(group_id)]
            routed = route(group.to_group())[PolicyId(policy)]
            routed.forget_calls()
            self._needed.setdefault(group.id, set()).add(routed.policy)
            if sort_key is None:
                waiting[bool(is_trained)].setdefault(routed.policy, []).append(routed)
            else:
                batch = BatchId(sort_key.rpartition("/")[0])
                batched.setdefault(batch, []).append((sort_key, bool(is_trained), routed))
        return RecoveredRun(
            open_groups=[group for group in groups.values() if group.id not in self._needed],
            buffered=waiting[False],
            replayable=waiting[True],
            batches=self._batches(batched),
            evaluations=[
                from_message(pb.EvaluationReport.FromString(body), EvaluationReport)
                for (body,) in self._journal.rows("select body from evaluations order by round")
            ],
            partials=self._partials(groups),
        )

    def _partials(self, groups: dict[GroupId, OpenGroup]) -> list[PartialRollout]:
        """Returns the partial rollouts; sets the attempts of the groups' members."""
        partials: list[PartialRollout] = []
        for task, group_id, attempt, blob in self._journal.rows("select * from unfinished"):
            self._unfinished.setdefault(GroupId(group_id), set()).add(TaskId(task))
            parsed = parse_task_id(TaskId(task))
            if parsed is not None and attempt:
                groups[GroupId(group_id)].attempts[parsed[1]] = attempt
            if blob is not None:
                partials.append(decode_partial_rollout(data.PartialRollout.FromString(blob)))
        return partials

    def _groups(self) -> dict[GroupId, OpenGroup]:
        groups: dict[GroupId, OpenGroup] = {}
        for group_id, flow, text in self._journal.rows("select id, flow, body from groups"):
            body = json.loads(text)
            groups[GroupId(group_id)] = OpenGroup(
                id=GroupId(group_id),
                flow=FlowId(flow),
                prompt=Prompt(id=PromptId(body["prompt"]), fields=body["fields"]),
                prompt_index=body["index"],
                size=body["size"],
                surplus_policies=frozenset(map(PolicyId, body["surplus_policies"])),
                issued_for_versions={PolicyId(policy): Version(version) for policy, version in body["served"].items()},
                pinned={PolicyId(policy): Version(version) for policy, version in body["pinned"].items()},
            )
        for number, body in self._journal.payloads():
            self._restore_payload(groups, number, body)
        return groups

    def _restore_payload(self, groups: Mapping[GroupId, OpenGroup], number: int, body: bytes) -> None:
        _, episodes = decode_push(body)
        users: set[GroupId] = set()
        for episode in episodes:
            parsed = parse_task_id(episode.task)
            if parsed is not None and parsed[0] in groups:
                groups[parsed[0]].episodes[parsed[1]] = episode
                users.add(parsed[0])
        if users:
            self._note_payload(number, users, len(body))
        else:
            self._journal.drop_payload(number)

    def _note_payload(self, number: int, users: set[GroupId], size_bytes: int) -> None:
        self._users[number] = users
        self._sizes[number] = size_bytes
        self.held_bytes += size_bytes
        for group in users:
            self._payloads.setdefault(group, set()).add(number)

    def _batches(self, batched: dict[BatchId, list[_BatchedGroup]]) -> dict[PolicyId, list[ServedBatch]]:
        batches: dict[PolicyId, list[ServedBatch]] = {}
        for policy, batch_id, version in self._journal.rows("select policy, id, version from batches order by rowid"):
            members = sorted(batched[BatchId(batch_id)], key=lambda member: member[0])
            batch = ServedBatch(
                id=BatchId(batch_id),
                version=Version(version),
                fresh_groups=tuple(group for _, is_trained, group in members if not is_trained),
                replayed=tuple(group for _, is_trained, group in members if is_trained),
            )
            batches.setdefault(PolicyId(policy), []).append(batch)
        return batches

    def _forget_if_unneeded(self, group: GroupId) -> None:
        if not self._needed[group]:
            del self._needed[group]
            self._journal.put("delete from groups where id = ?", group)
            for number in self._payloads.pop(group, ()):
                self._leave_payload(number, group)

    def _leave_payload(self, number: int, group: GroupId) -> None:
        """Drops a payload if no other group has results in it."""
        self._users[number].discard(group)
        if not self._users[number]:
            del self._users[number]
            self.held_bytes -= self._sizes.pop(number)
            self._journal.drop_payload(number)
