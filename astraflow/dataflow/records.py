"""Journal records of groups, episodes and batches, and recovery of a run from them."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import BatchId, FlowId, GroupId, PolicyId, PromptId, TaskId, Version
from astraflow.contract.reports.evaluations import EvaluationReport
from astraflow.contract.rollouts.partial_rollouts import PartialRollout
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.dataflow.admission.routing import RoutedGroup, route
from astraflow.dataflow.issuing.groups import OpenGroup, UnfinishedTask, flow_of_group, parse_task_id
from astraflow.dataflow.serving.buffer import ServedBatch
from astraflow.dataflow.storage.journal import Journal
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.codecs.data import decode_push, encode_push
from astraflow.wire.codecs.partial_rollouts import decode_partial_rollout, encode_partial_rollout
from astraflow.wire.pb import control_plane_pb2 as pb
from astraflow.wire.pb import data_plane_pb2 as data

_BatchedGroup: TypeAlias = tuple[str, bool, RoutedGroup]
"""A group of a batch: its sort key in the batch, whether it was trained before, and the group."""

_GROUP = "group"
"""Kind of a damaged record of the table `groups`."""


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
    lost_groups: Counter[FlowId]
    """Open groups that could not be read."""
    lost_shares: Counter[PolicyId]
    """Untrained groups of which a result could not be read, by the policy that was to be trained on them."""


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
            self._journal.put("insert into admissions values (?, ?, null, 0)", policy, group)
        self._forget_if_unneeded(group)

    def record_batch(self, policy: PolicyId, batch: ServedBatch) -> None:
        self._journal.put("insert or replace into batches values (?, ?, ?)", batch.id, policy, int(batch.version))
        for ordinal, group in enumerate((*batch.fresh_groups, *batch.replayed)):
            sort_key = f"{batch.id}/{ordinal:06d}"
            self._journal.put(
                "update admissions set batch = ? where policy = ? and group_id = ?", sort_key, policy, group.id
            )

    def record_trained(
        self, policy: PolicyId, batch: BatchId, *, replayable: Iterable[RoutedGroup], released: Iterable[RoutedGroup]
    ) -> None:
        """Records the acknowledgement of a batch; `replayable` groups stay to be trained again."""
        self._journal.put("delete from batches where id = ?", batch)
        for group in replayable:  # inserted again: rows are in the order in which groups became replayable
            self._journal.put("insert or replace into admissions values (?, ?, null, 1)", policy, group.id)
        self.record_released(policy, released)

    def record_dissolved(self, policy: PolicyId, batch: ServedBatch) -> None:
        """Records that the groups of a batch wait for another batch."""
        self._journal.put("delete from batches where id = ?", batch.id)
        for group in (*batch.fresh_groups, *batch.replayed):
            self._journal.put("update admissions set batch = null where policy = ? and group_id = ?", policy, group.id)

    def record_released(self, policy: PolicyId, groups: Iterable[RoutedGroup]) -> None:
        """Records that a stream no longer needs these groups."""
        for group in groups:
            self._journal.put("delete from admissions where policy = ? and group_id = ?", policy, group.id)
            self._needed[group.id].discard(policy)
            self._forget_if_unneeded(group.id)

    def record_evaluation(self, report: EvaluationReport) -> None:
        """Records an ended round of an evaluation."""
        self.last_round = max(self.last_round, report.round)
        body = to_message(report, pb.EvaluationReport).SerializeToString()
        self._journal.put("insert into evaluations values (?, ?)", report.round, body)

    def recover(self) -> RecoveredRun:
        """Reads everything back. What cannot be read is set aside by the journal, and what needs it is left out."""
        groups = self._groups()
        self.last_round = max((row[0] for row in self._journal.rows("select round from evaluations")), default=0)
        evaluations = self._journal.decoded(
            "select round, body from evaluations order by round",
            lambda row: from_message(pb.EvaluationReport.FromString(row[1]), EvaluationReport),
            what="evaluation round",
            delete="delete from evaluations where round = ?",
        )
        shares = self._shares(groups)
        self._release_lost(groups, shares)
        return RecoveredRun(
            open_groups=[group for group in groups.values() if group.id not in self._needed],
            buffered=shares.waiting[False],
            replayable=shares.waiting[True],
            batches=self._batches(shares),
            evaluations=evaluations,
            partials=self._partials(groups),
            lost_groups=Counter(
                flow_of_group(record.key)
                for record in self._journal.damaged.values()
                if record.what == _GROUP and record.key not in shares.lost_groups
            ),
            lost_shares=shares.lost,
        )

    def _shares(self, groups: Mapping[GroupId, OpenGroup]) -> "_Shares":
        """Returns each policy's share of the complete groups."""
        shares = _Shares()
        select = "select policy, group_id, is_trained, batch from admissions order by rowid"
        delete = "delete from admissions where policy = ? and group_id = ?"
        for policy, group_id, is_trained, sort_key in self._journal.decoded(
            select, _routed, what="share", delete=delete, keys=2
        ):
            batch = None if sort_key is None else self._batch_of(policy, group_id, sort_key, shares)
            routed = self._share(groups, group_id, policy)
            if routed is None:
                self._journal.put(delete, policy, group_id)
                shares.lost[policy] += not is_trained
                shares.lost_groups.add(group_id)
                shares.incomplete_batches.add(batch)
                continue
            self._needed.setdefault(group_id, set()).add(policy)
            if batch is None:
                shares.waiting[is_trained].setdefault(policy, []).append(routed)
            else:
                shares.batched.setdefault(batch, []).append((str(sort_key), is_trained, routed))
        return shares

    def _batch_of(self, policy: PolicyId, group: GroupId, sort_key: object, shares: "_Shares") -> BatchId | None:
        """Returns the batch of a share; None when that cannot be read, and the policy's batches are dissolved."""
        try:
            return BatchId(str(sort_key).rpartition("/")[0])
        except InvalidInput as problem:
            self._journal.set_aside("share", f"{policy} {group}", problem, body=sort_key)
            shares.dissolved.add(policy)
            return None

    def _share(self, groups: Mapping[GroupId, OpenGroup], id_: GroupId, policy: PolicyId) -> RoutedGroup | None:
        """Returns a policy's share of a complete group; None when results of the group were lost."""
        group = groups.get(id_)
        if group is None or (self._journal.damaged and not group.is_complete):
            return None
        routed = route(group.to_group()).get(policy)
        if routed is not None:
            routed.forget_calls()
        return routed

    def _release_lost(self, groups: dict[GroupId, OpenGroup], shares: "_Shares") -> None:
        """Deletes complete groups of which no share is left, so that they do not count as open."""
        for id_ in shares.lost_groups & groups.keys() - self._needed.keys():
            del groups[id_]
            self._needed[id_] = set()
            self._forget_if_unneeded(id_)

    def _partials(self, groups: dict[GroupId, OpenGroup]) -> list[PartialRollout]:
        """Returns the partial rollouts; sets the attempts of the groups' members."""
        rows = self._journal.decoded(
            "select task, group_id, attempt, partial from unfinished",
            lambda row: (*row[:3], None if row[3] is None else _partial(row[3])),
            what="partial rollout",
            delete="delete from unfinished where task = ?",
        )
        partials: list[PartialRollout] = []
        for task, group_id, attempt, partial in rows:
            if GroupId(group_id) not in groups:
                self._journal.put("delete from unfinished where task = ?", task)
                continue
            self._unfinished.setdefault(GroupId(group_id), set()).add(TaskId(task))
            parsed = parse_task_id(TaskId(task))
            if parsed is not None and attempt:
                groups[GroupId(group_id)].attempts[parsed[1]] = attempt
            if partial is not None:
                partials.append(partial)
        return partials

    def _groups(self) -> dict[GroupId, OpenGroup]:
        delete = "delete from groups where id = ?"
        rows = self._journal.decoded("select id, flow, body from groups", _group, what=_GROUP, delete=delete)
        groups = {group.id: group for group in rows}
        for number, body in self._journal.payloads():
            self._restore_payload(groups, number, body)
        return groups

    def _restore_payload(self, groups: Mapping[GroupId, OpenGroup], number: int, body: bytes) -> None:
        try:
            _, episodes = decode_push(body)
        except Exception as problem:  # damaged bytes fail in protobuf, numpy and contract types
            self._journal.set_aside("result", number, problem, body=body)
            self._journal.drop_payload(number)
            return
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

    def _batches(self, shares: "_Shares") -> dict[PolicyId, list[ServedBatch]]:
        """Returns the open batches. A batch that lost a group is dissolved, and so are the newer ones of its policy,
        because their number is the version that they are trained from: their groups wait for another batch."""
        batches: dict[PolicyId, list[ServedBatch]] = {}
        dissolved = set(shares.dissolved)
        select, delete = "select id, policy, version from batches order by rowid", "delete from batches where id = ?"
        rows = self._journal.decoded(select, _batch, what="batch", delete=delete)
        is_one_lost = any(what == "batch" for what, _ in self._journal.damaged)
        for batch_id, policy, version in rows:
            is_complete = batch_id in shares.batched and batch_id not in shares.incomplete_batches
            if is_one_lost or not is_complete or policy in dissolved:
                dissolved.add(policy)
                self._journal.put(delete, batch_id)
                continue
            members = sorted(shares.batched.pop(batch_id), key=lambda member: member[0])
            batch = ServedBatch(
                id=batch_id,
                version=version,
                fresh_groups=tuple(group for _, is_trained, group in members if not is_trained),
                replayed=tuple(group for _, is_trained, group in members if is_trained),
            )
            batches.setdefault(policy, []).append(batch)
        for _, is_trained, group in (member for members in shares.batched.values() for member in members):
            statement = "update admissions set batch = null where policy = ? and group_id = ?"
            self._journal.put(statement, group.policy, group.id)
            shares.waiting[is_trained].setdefault(group.policy, []).append(group)
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


@dataclass(slots=True)
class _Shares:
    """Policies' shares of the complete groups, as read back."""

    waiting: dict[bool, dict[PolicyId, list[RoutedGroup]]] = field(default_factory=lambda: {False: {}, True: {}})
    """Shares in no batch, by whether they were trained before and policy."""
    batched: dict[BatchId, list[_BatchedGroup]] = field(default_factory=dict)
    lost: Counter[PolicyId] = field(default_factory=Counter)
    """Untrained shares of which a result was lost. Count."""
    lost_groups: set[GroupId] = field(default_factory=set)
    incomplete_batches: set[BatchId | None] = field(default_factory=set)
    """Batches that lost a share."""
    dissolved: set[PolicyId] = field(default_factory=set)
    """Policies of which it is unknown what their batches consist of."""


def _group(row: tuple[Any, ...]) -> OpenGroup:
    """Returns an issued group without results. Raises: errors of JSON and contract types."""
    group_id, flow, text = row
    body = json.loads(text)
    return OpenGroup(
        id=GroupId(group_id),
        flow=FlowId(flow),
        prompt=Prompt(id=PromptId(body["prompt"]), fields=dict(body["fields"])),
        prompt_index=int(body["index"]),
        size=int(body["size"]),
        surplus_policies=frozenset(map(PolicyId, body["surplus_policies"])),
        issued_for_versions={PolicyId(policy): Version(version) for policy, version in body["served"].items()},
        pinned={PolicyId(policy): Version(version) for policy, version in body["pinned"].items()},
    )


def _partial(blob: bytes) -> PartialRollout:
    return decode_partial_rollout(data.PartialRollout.FromString(blob))


def _routed(row: tuple[Any, ...]) -> tuple[PolicyId, GroupId, bool, str | bytes | None]:
    policy, group_id, is_trained, sort_key = row
    return PolicyId(policy), GroupId(group_id), bool(is_trained), sort_key


def _batch(row: tuple[Any, ...]) -> tuple[BatchId, PolicyId, Version]:
    batch_id, policy, version = row
    return BatchId(batch_id), PolicyId(policy), Version(int(version))
