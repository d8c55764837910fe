"""Stream: the buffer and the batches that one policy's trainer consumes."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from astraflow.contract.batches import Batch, StepReport
from astraflow.contract.errors import InternalError, InvalidInput
from astraflow.contract.ids import BatchId, GroupId, PolicyId, Version
from astraflow.contract.plugins import PluginSlot
from astraflow.contract.records import Record, problem_record
from astraflow.contract.reports.report import Pace
from astraflow.contract.values import Json
from astraflow.dataflow.admission.routing import RoutedGroup
from astraflow.dataflow.issuing.pacing import Pacer
from astraflow.dataflow.issuing.staleness_gate import issue_headroom
from astraflow.dataflow.plugin_slot import SlotPlugins
from astraflow.dataflow.serving.buffer import AcknowledgedBatch, Buffer, BufferedGroup, ServedBatch
from astraflow.dataflow.serving.failed_steps import FailedSteps
from astraflow.dataflow.serving.samplers import Sampler
from astraflow.dataflow.serving.step_history import StepHistory

BUFFERED = "buffered"
"""Outcome of a group that waits for a batch."""

STALE = "stale"
"""Drop reason of a group whose weights are too many versions old."""

FULL = "full"
"""Drop reason of a group that was issued for other policies while the trainer of this policy was stalled."""

SET_ASIDE = "set_aside"
"""Drop reason of a group whose batch ended its trainer repeatedly."""

DAMAGED = "damaged"
"""Drop reason of a group of which a stored result could not be read."""

SHOWN_STEPS = 10
"""Acknowledged steps for which the report shows that a batch was set aside. Count."""

GROUP_SIZE_WEIGHT = 1 / 64
"""Weight of the newest group in the mean size of groups."""

MAX_UNACKNOWLEDGED = 1
"""Trained batches whose acknowledgement a trainer may delay while it trains the next one. Count."""


@dataclass(slots=True)
class StepTotals:
    """Sums over all steps of the run. Seconds."""

    wait_s: float = 0.0
    compute_s: float = 0.0
    publish_s: float = 0.0


@dataclass(slots=True)
class StreamCounts:
    """Groups of one stream since the run began. Invariant: `admitted == buffered + in_batch + trained + sum(dropped)`.

    The invariant is about fresh groups. A group that is trained again is counted only in `replayed`, each
    time: the batches of the run so far contain `trained + replayed` groups.
    """

    issued: int = 0
    refused: int = 0
    """Groups dropped at admission: they never reached the stream, but count for the gate."""
    admitted: int = 0
    trained: int = 0
    replayed: int = 0
    steps: int = 0
    redelivered: int = 0
    tokens: int = 0
    """Model-written tokens of the rows of all acknowledged batches."""
    episodes: int = 0
    """Episodes of all acknowledged batches."""
    dropped: Counter[str] = field(default_factory=Counter)
    totals: StepTotals = field(default_factory=StepTotals)


class Stream:
    """Buffer and batches of one policy.

        admitted ──► buffered ──► in batch ──► trained
                        │            │        │ ▲
                        │            └─► dropped (set aside)
                        └──► dropped (stale)  │ ▲
                                              ▼ │
                                           replayable ──► released (stale)

    If the sampler replays, trained groups are kept while they are admissible, and may be in a batch again.
    A batch is open until its step is reported, and is served again until then. A trainer that acknowledges each batch
    before it pulls the next has one open batch. One that writes its checkpoints while it computes has two: it has
    trained the first, and pulls the second.
    """

    def __init__(
        self,
        policy: PolicyId,
        *,
        batch_groups: int = 0,
        batch_tokens: int = 0,
        max_staleness: int,
        sampler: SlotPlugins[Sampler],
        is_paced: bool = False,
    ) -> None:
        """batch_groups, batch_tokens: size of a batch in groups or in distinct tokens; the other is 0.
        is_paced: False lets the staleness gate alone decide."""
        self.policy = policy
        self.batch_tokens = batch_tokens
        self._batch_size = batch_tokens or batch_groups
        """In the unit of `BufferedGroup.size`."""
        self._group_size: float = batch_tokens or 1
        """Mean size of the latest admitted groups; a batch of tokens is expected to be one until a group was."""
        self.pacer = Pacer(batch_groups=self.batch_groups, max_staleness=max_staleness) if is_paced else None
        self.max_staleness = max_staleness
        self.slot_plugins = sampler
        self.version = Version(0)
        """Version that the trainer reported last."""
        self.buffer = Buffer(max_staleness, self._size_of)
        self.replayable = Buffer(max_staleness, self._size_of)
        """Trained groups that may be trained again."""
        self.open_batches: list[ServedBatch] = []
        """Served batches without acknowledgement, oldest first."""
        self.counts = StreamCounts()
        self.history = StepHistory()
        self.failed_steps = FailedSteps()
        self.last_set_aside: Record | None = None
        """Problem of the batch or checkpoint that was set aside last; None without one in the latest steps."""
        self._set_aside_at = 0
        """Number of acknowledged steps when it was set aside."""
        self._delivered: set[BatchId] = set()
        """Open batches that were delivered before."""

    def issue_headroom(self, served: Version | None = None) -> int:
        """Returns how many more groups the staleness gate admits.

        served: version with which a node would begin them, if it is behind the trainer's; groups begun with older
        weights have less time to be trained on.
        """
        trained = max(0, self.version - self.counts.steps)
        untrained = [sum(map(self._size_of, batch.fresh_groups)) for batch in self.open_batches[trained:]]
        return issue_headroom(
            lag=0 if served is None else max(0, self.version - served),
            max_staleness=self.max_staleness,
            fresh=(untrained[0] if untrained else self._fresh_needed, self._least_fresh),
            held=self.buffer.size + sum(untrained),
            open_groups=self._open_groups,
            group_size=self._group_size,
        )

    def pace(self) -> Pace | None:
        """Returns how many groups may be outstanding, and how many are; None while only the gate decides."""
        if self.pacer is None:
            return None
        return self.pacer.pace(
            open_groups=max(0, self._open_groups),
            buffered=len(self.buffer),
            fresh_groups=self._least_fresh / self._group_size,
        )

    @property
    def batch_groups(self) -> int:
        """Groups of a batch; as many as are expected where tokens size batches."""
        return max(1, round(self._batch_size / self._group_size))

    @property
    def next_batch_groups(self) -> int:
        """Groups of the next batch: more than are buffered as long as they make no batch."""
        missing = self._batch_size - self.buffer.size
        if missing > 0:
            return len(self.buffer) + math.ceil(missing / self._group_size)
        return min(self.batch_groups, len(self.buffer))

    @property
    def published_version(self) -> Version:
        """Newest version that nodes can fetch for certain: a trainer acknowledges a step once its version is published,
        but may announce the version before."""
        return min(self.version, Version(self.counts.steps))

    @property
    def has_batch(self) -> bool:
        """True if a batch is open or can be assembled."""
        return bool(self.open_batches) or self.buffer.size >= self._fresh_needed

    @property
    def usual_step_s(self) -> float:
        """Mean duration of the latest steps without the wait for their batches; 0 before the first step."""
        busy = [step["wall_s"] - step["wait_s"] for step in self.history.recent]
        return sum(busy) / len(busy) if busy else 0.0

    @property
    def plugin_slots(self) -> dict[PluginSlot, SlotPlugins[Sampler]]:
        """Slot whose plugin may be changed during the run."""
        return {PluginSlot.SAMPLER: self.slot_plugins}

    @property
    def in_batch(self) -> int:
        return sum(len(batch.fresh_groups) for batch in self.open_batches)

    @property
    def oldest_trainable_version(self) -> Version:
        """Oldest version of the weights that may have generated a trainable row."""
        return Version(max(0, self.version - self.max_staleness))

    def admit(self, group: RoutedGroup) -> str:
        """Buffers a group, or drops it when it is already too stale; returns its outcome."""
        self.counts.admitted += 1
        self._observe_size(group)
        if not self._is_admissible(group):
            self.counts.dropped[STALE] += 1
            return STALE
        self.buffer.put(group)
        return BUFFERED

    def drop_surplus(self) -> str:
        """Drops a complete group that was surplus here, because the stream was full when it was issued."""
        self.counts.issued += 1
        self.counts.admitted += 1
        self.counts.dropped[FULL] += 1
        return FULL

    def attach(self, version: Version) -> None:
        """Sets the version of the trainer that consumes the stream from now on."""
        self.version = max(self.version, version)

    def evict_stale(self) -> list[RoutedGroup]:
        """Drops and returns the groups that are too stale for the trainer's version."""
        stale = self.buffer.evict_stale(self.version)
        self.counts.dropped[STALE] += len(stale)
        return stale

    def release_stale_replayable(self) -> list[RoutedGroup]:
        """Removes and returns the trained groups that are too stale to be trained again."""
        return self.replayable.evict_stale(self.version)

    def release_unreplayed(self) -> list[RoutedGroup]:
        """Removes and returns all trained groups if the sampler replays none."""
        return [] if self._does_replay else self.replayable.take(self.replayable.candidates())

    def position_of(self, version: Version, *, unacknowledged: int) -> int:
        """Returns which of the open batches, from the oldest, a trainer at `version` trains next.

        unacknowledged: trained batches that it acknowledges later. The number of a batch is the version that it is
        trained from, so the answer is right also if their acknowledgement was on its way. In every other case it is the
        oldest batch: a trainer that was restarted trains it again, one that has trained it acknowledges it again.
        """
        ahead = version - self.counts.steps
        return ahead if 0 <= ahead <= min(unacknowledged, MAX_UNACKNOWLEDGED) else 0

    def next_batch(self, position: int = 0, *, now: float = 0.0) -> ServedBatch | None:
        """Returns the open batch at `position`, or a new one if the buffer holds enough groups; None otherwise."""
        is_missing = position == len(self.open_batches)
        is_filled = is_missing and self.buffer.size >= self._fresh_needed
        if is_missing and not is_filled and self.pacer is not None:
            self.pacer.observe_missing_batch(now=now)
        if is_filled:
            fresh, trained = self.buffer.candidates(), self.replayable.candidates()
            chosen = self._sampler.sample(fresh, trained, self._batch_size, self.version)
            self._check_choice(chosen, (*fresh, *trained))
            trained_ids = {candidate.group.id for candidate in trained}
            batch = ServedBatch(
                id=BatchId(f"{self.policy}:{self.counts.steps + position}"),
                version=self.version,
                fresh_groups=tuple(
                    self.buffer.take(candidate for candidate in chosen if candidate.group.id not in trained_ids)
                ),
                replayed=tuple(
                    self.replayable.take(candidate for candidate in chosen if candidate.group.id in trained_ids)
                ),
            )
            self.open_batches.append(batch)
            if self.pacer is not None:
                self.pacer.observe_batch(len(self.buffer), now=now)
        return self.open_batches[position] if position < len(self.open_batches) else None

    def deliver(self, served: ServedBatch) -> Batch:
        """Returns the batch for the trainer and counts repeated deliveries."""
        is_redelivered = served.id in self._delivered
        self._delivered.add(served.id)
        self.counts.redelivered += is_redelivered
        return Batch(
            id=served.id,
            policy=self.policy,
            version=served.version,
            is_redelivered=is_redelivered,
            rows=served.rows,
        )

    def open_batch(self, batch: BatchId) -> ServedBatch | None:
        """Returns the open batch of this number; None if there is none."""
        return next((served for served in self.open_batches if served.id == batch), None)

    def set_aside(self, batch: ServedBatch, notice: Record) -> list[ServedBatch]:
        """Removes an open batch, which is not delivered again; returns the newer open batches, whose groups are
        buffered again: the number of a batch is the version that it is trained from, and versions have no gaps."""
        position = self.open_batches.index(batch)
        newer = self.open_batches[position + 1 :]
        for served in newer:
            for group in served.fresh_groups:
                self.buffer.put(group)
            for group in served.replayed:
                self.replayable.put(group)
        self._delivered -= {served.id for served in self.open_batches[position:]}
        del self.open_batches[position:]
        self.counts.dropped[SET_ASIDE] += len(batch.fresh_groups)
        self.failed_steps.count_set_aside({served.id for served in self.open_batches})
        self.note_set_aside(notice)
        return newer

    def note_set_aside(self, notice: Record) -> None:
        """Notes a batch or a checkpoint that is set aside."""
        self.last_set_aside, self._set_aside_at = notice, self.counts.steps

    def acknowledge(self, report: StepReport) -> AcknowledgedBatch | None:
        """Acknowledges the oldest open batch as trained; returns its groups, or None if it was acknowledged before.

        Raises: InvalidInput for a batch that was never served, or while an older one is open.
        """
        if not self.open_batches or report.batch != self.open_batches[0].id:
            if self._was_trained(report.batch):
                return None
            open_batch = repr(self.open_batches[0].id) if self.open_batches else "none"
            raise InvalidInput(
                f"cannot acknowledge batch {report.batch!r} of {self.policy!r}: it is not the oldest open one ("
                f"{open_batch}); attach again",
                code="batch.not_open",
            )
        served = self.open_batches.pop(0)
        self._delivered.discard(served.id)
        self.counts.trained += len(served.fresh_groups)
        self.counts.replayed += len(served.replayed)
        self.counts.steps += 1
        self.counts.tokens += sum(sum(part.model_tokens) for part in served.rows.parts)
        self.counts.episodes += len(set(served.rows.tasks))
        self.failed_steps.forget_acknowledged(served.id)
        if self.counts.steps - self._set_aside_at >= SHOWN_STEPS:
            self.last_set_aside = None
        totals = self.counts.totals
        totals.wait_s += report.wait_s
        totals.compute_s += report.compute_s
        totals.publish_s += report.publish_s
        if self.pacer is not None:
            self.pacer.observe_step(report.compute_s + report.publish_s)
        self.history.record(served, report)
        self.version = max(self.version, report.version)
        return self._acknowledged(served)

    def restore(
        self, buffered: list[RoutedGroup], open_batches: list[ServedBatch], replayable: list[RoutedGroup]
    ) -> None:
        """Restores the groups that were buffered, in open batches or replayable when the service stopped."""
        for group in buffered:
            self.buffer.put(group)
        for group in replayable:
            self.replayable.put(group)
        self.open_batches = list(open_batches)
        self._delivered = {batch.id for batch in open_batches}
        self.failed_steps.forget_others(self._delivered)

    def untrained_groups(self) -> list[GroupId]:
        """Returns the fresh groups that are buffered or in an open batch."""
        in_batch = [group.id for batch in self.open_batches for group in batch.fresh_groups]
        return [*(buffered.group.id for buffered in self.buffer.candidates()), *in_batch]

    def state_dict(self) -> dict[str, Json]:
        """Returns version, counts and the sampler's state; the steps are in `history`."""
        counts = self.counts
        return {
            "version": int(self.version),
            "counts": {
                name: getattr(counts, name)
                for name in (
                    *("issued", "refused", "admitted", "trained", "replayed"),
                    *("steps", "redelivered", "tokens", "episodes"),
                )
            },
            "dropped": dict(counts.dropped),
            "totals": {name: getattr(counts.totals, name) for name in ("wait_s", "compute_s", "publish_s")},
            "sampler": self.slot_plugins.state_dict(),
            "group_size": {"batch_tokens": self.batch_tokens, "mean": self._group_size},
            "failed_steps": self.failed_steps.state_dict(),
            "set_aside": None
            if self.last_set_aside is None
            else [self.last_set_aside.cause, dict(self.last_set_aside.values), self._set_aside_at],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state."""
        self.version = Version(state["version"])
        self.counts = StreamCounts(
            **state["counts"], dropped=Counter(state["dropped"]), totals=StepTotals(**state["totals"])
        )
        self.slot_plugins.load_state_dict(state["sampler"])
        if state.get("group_size", {}).get("batch_tokens") == self.batch_tokens > 0:
            self._group_size = state["group_size"]["mean"]
        self.failed_steps = FailedSteps.from_state_dict(state["failed_steps"])
        if state.get("set_aside") is not None:  # absent from runs of earlier releases, which stored a sentence
            cause, values, self._set_aside_at = state["set_aside"]
            self.last_set_aside = problem_record(cause, self.policy, **values)

    def metrics(self) -> dict[str, float]:
        """Returns the sampler's metrics, named `kind.metric`."""
        return self.slot_plugins.metrics()

    @property
    def _sampler(self) -> Sampler:
        return self.slot_plugins.first_plugin[1]

    @property
    def _does_replay(self) -> bool:
        return self._least_fresh < self._batch_size

    @property
    def _open_groups(self) -> int:
        """Issued groups that are not complete."""
        return self.counts.issued - self.counts.refused - self.counts.admitted

    @property
    def _fresh_needed(self) -> int:
        """Size of the fresh groups that the next batch waits for."""
        return self._sampler.fresh_count(self._batch_size, self.replayable.size)

    @property
    def _least_fresh(self) -> int:
        """Size of the fresh groups of a batch with as much replay as possible."""
        return self._sampler.fresh_count(self._batch_size, self._batch_size)

    def _size_of(self, group: RoutedGroup) -> int:
        return group.distinct_tokens if self.batch_tokens else 1

    def _observe_size(self, group: RoutedGroup) -> None:
        weight = max(1 / self.counts.admitted, GROUP_SIZE_WEIGHT)
        self._group_size += weight * (self._size_of(group) - self._group_size)
        if self.pacer is not None:
            self.pacer.batch_groups = self.batch_groups

    def _check_choice(self, chosen: Sequence[BufferedGroup], offered: Sequence[BufferedGroup]) -> None:
        """Checks a sampler's choice before groups are removed. Raises: InternalError for an invalid choice."""
        valid = {candidate.group.id for candidate in chosen} & {candidate.group.id for candidate in offered}
        size = sum(candidate.size for candidate in chosen)
        if not chosen or len(valid) != len(chosen) or not size - chosen[-1].size < self._batch_size <= size:
            raise InternalError(
                f"cannot make a batch of {self.policy!r}: the sampler {self.slot_plugins.first_plugin[0]!r} chose "
                f"{len(chosen)} groups, {len(valid)} of them different and offered, of the size {size} instead of "
                f"{self._batch_size}; change the sampler, and pause the flow so that the change applies at once",
                code="sampler.invalid_choice",
            )

    def _is_admissible(self, group: RoutedGroup) -> bool:
        return group.oldest_version >= self.oldest_trainable_version

    def _acknowledged(self, served: ServedBatch) -> AcknowledgedBatch:
        does_replay = self._does_replay
        groups = (*served.fresh_groups, *served.replayed)
        replayable = tuple(group for group in groups if does_replay and self._is_admissible(group))
        for group in replayable:
            self.replayable.put(group)
        released = tuple(group for group in groups if not (does_replay and self._is_admissible(group)))
        return AcknowledgedBatch(trained=served.fresh_groups, replayable=replayable, released=released)

    def _was_trained(self, batch: BatchId) -> bool:
        policy, _, step = batch.rpartition(":")
        return policy == self.policy and step.isdecimal() and int(step) < self.counts.steps
