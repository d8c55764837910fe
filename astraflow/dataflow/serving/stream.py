"""What one policy's trainer consumes."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from astraflow.contract.batches import Batch, StepReport
from astraflow.contract.errors import InternalError, InvalidInput
from astraflow.contract.ids import BatchId, GroupId, PolicyId, Version
from astraflow.contract.links import VersionReport
from astraflow.contract.plugins import Seam
from astraflow.contract.values import Json
from astraflow.dataflow.admitting.routing import RoutedGroup
from astraflow.dataflow.issuing.throttle import issue_room
from astraflow.dataflow.plugged import Plugged
from astraflow.dataflow.serving.batching import Acknowledged, ServedBatch
from astraflow.dataflow.serving.buffer import Buffer, Buffered
from astraflow.dataflow.serving.sampling import Sampler

BUFFERED = "buffered"
"""Fate of a group that waits for a batch."""

STALE = "stale"
"""Reason of a group that was begun too many versions ago."""

FULL = "full"
"""Reason of a group that was issued for another policy's sake, while this one's trainer was stalled."""

RECENT_STEPS = 10
"""Steps that windowed figures look back on."""

REWARD_STEPS = 32
"""Steps whose rewards are kept: more than any trainer makes between two reports that somebody reads."""

PUBLISHED_VERSIONS = 16
"""Versions of the weights that are told of."""


@dataclass(slots=True)
class StepTotals:
    """Sums over all steps of the run, seconds."""

    wait_s: float = 0.0
    compute_s: float = 0.0
    publish_s: float = 0.0


@dataclass(slots=True)
class StreamCounts:
    """Groups of one stream since the run began. `admitted == buffered + in_batch + trained + sum(dropped)` always.

    That balance is about fresh groups. A group that is trained again is counted in `replayed`, each time, and nowhere
    else: the batches of the run so far hold `trained + replayed` groups.
    """

    issued: int = 0
    refused: int = 0
    """Dropped at admission: they never reached the stream, but count for the gate."""
    admitted: int = 0
    trained: int = 0
    replayed: int = 0
    steps: int = 0
    redelivered: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    totals: StepTotals = field(default_factory=StepTotals)


class Stream:
    """Buffer and batches of one policy.

        admitted ──► buffered ──► in batch ──► trained
                        │                     │ ▲
                        └──► dropped (stale)  │ ▲
                                              ▼ │
                                           replayable ──► forgotten (stale)

    Where the sampler replays, trained groups are kept while they are admissible, and may be in a batch again.
    At most one batch is out; it is served again, the same, until its step is reported.
    """

    def __init__(self, policy: PolicyId, *, batch_groups: int, max_staleness: int, sampler: Plugged[Sampler]) -> None:
        self.policy = policy
        self.batch_groups = batch_groups
        self.max_staleness = max_staleness
        self.plugged = sampler
        self.version = Version(0)
        """The trainer's, as far as it told."""
        self.buffer = Buffer(max_staleness)
        self.replayable = Buffer(max_staleness)
        """Trained groups that may be trained again."""
        self.batch: ServedBatch | None = None
        self.counts = StreamCounts()
        self.last_step: dict[str, float] = {}
        """Reward, tokens and the trainer's own metrics of the last step."""
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT_STEPS)
        """Wait and wall seconds and staleness of the latest steps."""
        self.rewards: deque[float] = deque(maxlen=REWARD_STEPS)
        """Mean reward of the rollouts that came in before each of the latest steps, since the step before."""
        self.published: deque[VersionReport] = deque(maxlen=PUBLISHED_VERSIONS)
        """The latest versions of the weights, as the trainer told of them."""
        self._rewards_since_step: list[float] = []
        self._was_delivered = False

    def issue_room(self, served: Version | None = None) -> int:
        """How many more groups the staleness gate lets out.

        served: the version a node would begin them with, where it is behind the trainer's; what is begun with older
        weights has as much less time to be trained on.
        """
        dropped = self.counts.refused + sum(self.counts.dropped.values())
        return issue_room(
            version=self.version,
            lag=0 if served is None else max(0, self.version - served),
            max_staleness=self.max_staleness,
            batch_groups=self.batch_groups,
            fresh_groups=(
                self.in_batch or self._fresh_needed,
                self._sampler.fresh_count(self.batch_groups, self.batch_groups),
            ),
            replayed=self.counts.replayed,
            issued=self.counts.issued,
            dropped=dropped,
        )

    @property
    def has_batch(self) -> bool:
        """A batch is out, or could be."""
        return self.batch is not None or len(self.buffer) >= self._fresh_needed

    @property
    def usual_step_s(self) -> float:
        """Mean duration of the latest steps without the wait for their batches; 0 before the first."""
        busy = [step["wall_s"] - step["wait_s"] for step in self.recent]
        return sum(busy) / len(busy) if busy else 0.0

    @property
    def seams(self) -> dict[Seam, Plugged[Sampler]]:
        """Where its plug-in may be changed."""
        return {Seam.SAMPLER: self.plugged}

    @property
    def in_batch(self) -> int:
        """Fresh groups of the batch that is out."""
        return len(self.batch.groups) if self.batch else 0

    @property
    def floor(self) -> Version:
        """The oldest version that a row may have been begun with to be trained on now."""
        return Version(max(0, self.version - self.max_staleness))

    def admit(self, group: RoutedGroup) -> str:
        """Buffer a group, or drop it when it is too stale already; tells its fate."""
        self.counts.admitted += 1
        if not self._is_admissible(group):
            self.counts.dropped[STALE] += 1
            return STALE
        self.buffer.put(group)
        return BUFFERED

    def shed(self) -> str:
        """Drop a complete group that took no place here, because the stream was full when it was issued."""
        self.counts.issued += 1
        self.counts.admitted += 1
        self.counts.dropped[FULL] += 1
        return FULL

    def observe(self, reward: float) -> None:
        """A rollout came in, whatever becomes of it."""
        self._rewards_since_step.append(reward)

    def attach(self, version: Version) -> None:
        """A trainer at `version` consumes from now on."""
        self.version = max(self.version, version)

    def evict_stale(self) -> list[RoutedGroup]:
        """Drop what became too stale for the trainer's version; tells which."""
        stale = self.buffer.evict_stale(self.version)
        self.counts.dropped[STALE] += len(stale)
        return stale

    def forget_stale(self) -> list[RoutedGroup]:
        """Forget the trained groups that may not be trained again any more; tells which."""
        return self.replayable.evict_stale(self.version)

    def forget_unreplayed(self) -> list[RoutedGroup]:
        """Forget all trained groups when the sampler replays none; tells which."""
        return [] if self._does_replay else self.replayable.take(self.replayable.candidates())

    def next_batch(self) -> ServedBatch | None:
        """The batch that is out, or a new one if the buffer holds enough; None otherwise."""
        if self.batch is None and len(self.buffer) >= self._fresh_needed:
            fresh, trained = self.buffer.candidates(), self.replayable.candidates()
            chosen = self._sampler.sample(fresh, trained, self.batch_groups, self.version)
            self._check_choice([one.group.id for one in chosen], (*fresh, *trained))
            again = {candidate.group.id for candidate in trained}
            self.batch = ServedBatch(
                id=BatchId(f"{self.policy}:{self.counts.steps}"),
                version=self.version,
                groups=tuple(self.buffer.take(one for one in chosen if one.group.id not in again)),
                replayed=tuple(self.replayable.take(one for one in chosen if one.group.id in again)),
            )
            self._was_delivered = False
        return self.batch

    def deliver(self, served: ServedBatch) -> Batch:
        """The batch as the trainer gets it; counts a second delivery."""
        is_redelivered = self._was_delivered
        self._was_delivered = True
        self.counts.redelivered += is_redelivered
        return Batch(
            id=served.id,
            policy=self.policy,
            version=served.version,
            is_redelivered=is_redelivered,
            rows=served.rows,
        )

    def acknowledge(self, report: StepReport) -> Acknowledged | None:
        """The trainer trained on a batch; tells what it was made of, or None if that was known.

        Raises: InvalidInput for a batch that was never served.
        """
        if self.batch is None or report.batch != self.batch.id:
            if self._was_trained(report.batch):
                return None
            out = self.batch.id if self.batch else "none"
            raise InvalidInput(f"batch {report.batch} of {self.policy} is not out (out: {out}): attach again")
        served, self.batch = self.batch, None
        self.counts.trained += len(served.groups)
        self.counts.replayed += len(served.replayed)
        self.counts.steps += 1
        self._record(served, report)
        self.version = max(self.version, report.version)
        return self._acknowledged(served)

    def restore(self, buffered: list[RoutedGroup], batch: ServedBatch | None, replayable: list[RoutedGroup]) -> None:
        """Put back what was buffered, out and kept when the service stopped."""
        for group in buffered:
            self.buffer.put(group)
        for group in replayable:
            self.replayable.put(group)
        self.batch = batch
        self._was_delivered = batch is not None

    def waiting(self) -> list[GroupId]:
        """Fresh groups that are buffered or in the batch that is out."""
        in_batch = self.batch.groups if self.batch else ()
        return [*(buffered.group.id for buffered in self.buffer.candidates()), *(group.id for group in in_batch)]

    def state_dict(self) -> dict[str, Json]:
        """Version, counts and recent steps."""
        counts = self.counts
        return {
            "version": int(self.version),
            "counts": {
                name: getattr(counts, name)
                for name in ("issued", "refused", "admitted", "trained", "replayed", "steps", "redelivered")
            },
            "dropped": dict(counts.dropped),
            "totals": {name: getattr(counts.totals, name) for name in ("wait_s", "compute_s", "publish_s")},
            "last_step": dict(self.last_step),
            "recent": list(self.recent),
            "rewards": list(self.rewards),
            "published": [dict(version.metrics()) for version in self.published],
            "sampler": self.plugged.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.version = Version(state["version"])
        self.counts = StreamCounts(
            **state["counts"], dropped=Counter(state["dropped"]), totals=StepTotals(**state["totals"])
        )
        self.last_step = state["last_step"]
        self.recent = deque(state["recent"], maxlen=RECENT_STEPS)
        self.rewards = deque(state["rewards"], maxlen=REWARD_STEPS)
        told = (VersionReport.told(metrics) for metrics in state["published"])
        self.published = deque((version for version in told if version), maxlen=PUBLISHED_VERSIONS)
        self.plugged.load_state_dict(state["sampler"])

    def metrics(self) -> dict[str, float]:
        """What the sampler says of itself, as `kind.metric`."""
        return self.plugged.metrics()

    @property
    def _sampler(self) -> Sampler:
        return self.plugged.first[1]

    @property
    def _does_replay(self) -> bool:
        return self._sampler.fresh_count(self.batch_groups, self.batch_groups) < self.batch_groups

    @property
    def _fresh_needed(self) -> int:
        """Fresh groups that the next batch waits for."""
        return self._sampler.fresh_count(self.batch_groups, len(self.replayable))

    def _check_choice(self, chosen: Sequence[GroupId], offered: Sequence[Buffered]) -> None:
        """Before anything is taken out. Raises: InternalError for a sampler that breaks its promise."""
        good = set(chosen) & {one.group.id for one in offered}
        if not len(good) == len(chosen) == self.batch_groups:
            raise InternalError(
                f"the sampler {self.plugged.first[0]!r} of {self.policy} chose {len(good)} different groups of those "
                f"it was offered, {len(chosen)} in all, for a batch of {self.batch_groups}: set another, and pause the "
                "flow so that it holds at once"
            )

    def _is_admissible(self, group: RoutedGroup) -> bool:
        return group.born >= self.floor

    def _acknowledged(self, served: ServedBatch) -> Acknowledged:
        does_replay = self._does_replay
        groups = (*served.groups, *served.replayed)
        kept = tuple(group for group in groups if does_replay and self._is_admissible(group))
        for group in kept:
            self.replayable.put(group)
        forgotten = tuple(group for group in groups if not (does_replay and self._is_admissible(group)))
        return Acknowledged(trained=served.groups, kept=kept, forgotten=forgotten)

    def _was_trained(self, batch: BatchId) -> bool:
        policy, _, step = batch.rpartition(":")
        return policy == self.policy and step.isdecimal() and int(step) < self.counts.steps

    def _record(self, served: ServedBatch, report: StepReport) -> None:
        rows = [row.trajectory for row in served.rows]
        totals = self.counts.totals
        totals.wait_s += report.wait_s
        totals.compute_s += report.compute_s
        totals.publish_s += report.publish_s
        ages = Counter(
            str(max(0, served.version - row.oldest_version)) for row in rows if row.oldest_version is not None
        )
        self.recent.append(
            {
                "wait_s": report.wait_s,
                "wall_s": report.wait_s + report.compute_s + report.publish_s,
                "staleness": dict(ages),
            }
        )
        self.last_step = {
            **report.metrics,
            "reward_mean": sum(row.reward for row in rows) / len(rows),
            "tokens_mean": sum(row.model_tokens for row in rows) / len(rows),
        }
        told = VersionReport.told(report.metrics)
        if told is not None and not (self.published and told.version <= self.published[-1].version):
            self.published.append(told)
        # A step may be made of rollouts that came in before the step before it.
        came_in = self._rewards_since_step or [row.reward for row in rows]
        self.rewards.append(sum(came_in) / len(came_in))
        self._rewards_since_step = []
