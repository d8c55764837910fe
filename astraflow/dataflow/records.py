"""What the journal keeps of groups, episodes and batches, and how a run is read back from it."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from astraflow.contract.ids import BatchId, FlowId, GroupId, NodeId, PolicyId, PromptId, Version
from astraflow.contract.tasks import Prompt
from astraflow.contract.trajectories import Episode
from astraflow.dataflow.admitting.routing import RoutedGroup, route
from astraflow.dataflow.issuing.groups import OpenGroup, ordinal_of, parse_task_id
from astraflow.dataflow.journal import Journal
from astraflow.dataflow.serving.batching import ServedBatch
from astraflow.wire.codec_data import decode_episode, encode_episode
from astraflow.wire.pb import data_plane_pb2 as pb

_Placed: TypeAlias = tuple[str, bool, RoutedGroup]
"""A group of a batch: its place, and whether it was trained before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A run as the journal holds it."""

    open_groups: list[OpenGroup]
    buffered: dict[PolicyId, list[RoutedGroup]]
    batches: dict[PolicyId, ServedBatch]
    replayable: dict[PolicyId, list[RoutedGroup]]
    """Trained groups that may be trained again, in the order they were issued."""


class Records:
    """Named changes of the journal. A group's rows are deleted once no stream needs them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._needed: dict[GroupId, set[PolicyId]] = {}

    def issued(self, group: OpenGroup) -> None:
        """A group is out."""
        body = json.dumps(
            {"prompt": group.prompt.id, "fields": dict(group.prompt.fields), "index": group.index, "size": group.size}
        )
        self._journal.put("insert into groups values (?, ?, ?)", group.id, group.flow, body)

    def accepted(self, group: GroupId, episode: Episode) -> None:
        """A member's result counts."""
        body = encode_episode(episode).SerializeToString()
        self._journal.put("insert into episodes values (?, ?, ?, ?)", episode.task, group, episode.node, body)

    def closed(self, group: GroupId, kept_by: Iterable[PolicyId]) -> None:
        """A group is complete, and these streams buffer it; for none of them it is forgotten."""
        self._needed[group] = set(kept_by)
        for policy in self._needed[group]:
            self._journal.put("insert into routed values (?, ?, null, 0)", policy, group)
        self._forget_if_unneeded(group)

    def batched(self, policy: PolicyId, batch: ServedBatch) -> None:
        """A batch is put together."""
        self._journal.put("insert or replace into batches values (?, ?, ?)", policy, batch.id, int(batch.version))
        for ordinal, group in enumerate((*batch.groups, *batch.replayed)):
            place = f"{batch.id}/{ordinal:06d}"
            self._journal.put("update routed set batch = ? where policy = ? and group_id = ?", place, policy, group.id)

    def trained(self, policy: PolicyId, *, kept: Iterable[RoutedGroup], forgotten: Iterable[RoutedGroup]) -> None:
        """The batch that was out is acknowledged; some of its groups are kept to be trained again."""
        self._journal.put("delete from batches where policy = ?", policy)
        for group in kept:
            statement = "update routed set batch = null, is_trained = 1 where policy = ? and group_id = ?"
            self._journal.put(statement, policy, group.id)
        self.released(policy, forgotten)

    def released(self, policy: PolicyId, groups: Iterable[RoutedGroup]) -> None:
        """A stream needs these groups no more."""
        for group in groups:
            self._journal.put("delete from routed where policy = ? and group_id = ?", policy, group.id)
            self._needed[group.id].discard(policy)
            self._forget_if_unneeded(group.id)

    def recover(self) -> Recovered:
        """Read everything back."""
        groups = self._groups()
        waiting: dict[bool, dict[PolicyId, list[RoutedGroup]]] = {False: {}, True: {}}
        batched: dict[PolicyId, list[_Placed]] = {}
        for policy, group_id, place, is_trained in self._journal.rows("select * from routed"):
            group = groups[GroupId(group_id)]
            routed = route(group.finished())[PolicyId(policy)]
            self._needed.setdefault(group.id, set()).add(routed.policy)
            if place is None:
                waiting[bool(is_trained)].setdefault(routed.policy, []).append(routed)
            else:
                batched.setdefault(routed.policy, []).append((place, bool(is_trained), routed))
        for of_kind in waiting.values():
            for of_policy in of_kind.values():
                of_policy.sort(key=lambda routed: ordinal_of(routed.id) or 0)
        return Recovered(
            open_groups=[group for group in groups.values() if group.id not in self._needed],
            buffered=waiting[False],
            replayable=waiting[True],
            batches=self._batches(batched),
        )

    def _groups(self) -> dict[GroupId, OpenGroup]:
        groups: dict[GroupId, OpenGroup] = {}
        for group_id, flow, text in self._journal.rows("select id, flow, body from groups"):
            body = json.loads(text)
            groups[GroupId(group_id)] = OpenGroup(
                id=GroupId(group_id),
                flow=FlowId(flow),
                prompt=Prompt(id=PromptId(body["prompt"]), fields=body["fields"]),
                index=body["index"],
                size=body["size"],
            )
        for task, group_id, node, blob in self._journal.rows("select task, group_id, node, body from episodes"):
            parsed = parse_task_id(task)
            if parsed is not None and GroupId(group_id) in groups:
                episode = decode_episode(pb.Episode.FromString(blob), NodeId(node))
                groups[GroupId(group_id)].episodes[parsed[1]] = episode
        return groups

    def _batches(self, batched: dict[PolicyId, list[_Placed]]) -> dict[PolicyId, ServedBatch]:
        batches = {}
        for policy, batch_id, version in self._journal.rows("select policy, id, version from batches"):
            members = sorted(batched[PolicyId(policy)], key=lambda placed: placed[0])
            batches[PolicyId(policy)] = ServedBatch(
                id=BatchId(batch_id),
                version=Version(version),
                groups=tuple(group for _, is_trained, group in members if not is_trained),
                replayed=tuple(group for _, is_trained, group in members if is_trained),
            )
        return batches

    def _forget_if_unneeded(self, group: GroupId) -> None:
        if not self._needed[group]:
            del self._needed[group]
            self._journal.put("delete from episodes where group_id = ?", group)
            self._journal.put("delete from groups where id = ?", group)
