"""One policy's batches, steps and versions as they went over the wire, and the weights that must follow from them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from astraflow.contract.batches import Batch, StepReport
from astraflow.contract.ids import GroupId, PolicyId, TaskId, Version
from astraflow.contract.weights import Manifest
from astraflow.trainer.backends.base import Backend
from astraflow.weights.tensors import build_layout
from tests.snapshots import snapshot_of
from tests.soak.results import Results, identity
from tests.soak.rules import Promise, StreamRules, Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """The batch that was delivered last."""

    rows: tuple[tuple[TaskId, int], ...]
    version: Version


@dataclass(slots=True)
class Lineage:
    """Batch n leads from version n to version n + 1.

    The scripted trainer's weights follow from what it was given to learn, so the ledger learns along: what it gets for
    a version must be what the trainer publishes, bit for bit, whatever was killed meanwhile. A batch that was trained
    twice, left out, or changed on a second delivery would make other bits for ever after.
    """

    policy: PolicyId
    rules: StreamRules
    results: Results
    backend: Backend
    now: Callable[[], float]
    violations: list[Violation] = field(default_factory=list)
    trained_in: dict[GroupId, int] = field(default_factory=dict)
    """The batch of each group that was ever served."""
    step_times: list[float] = field(default_factory=list)
    """When each step was known to be acknowledged."""
    deliveries: int = 0
    published: dict[Version, bytes] = field(default_factory=dict)
    """Root hash of the versions that the store answered for."""
    _served: _Served | None = None
    _batches: int = 0
    _first_answers: set[int] = field(default_factory=set)
    _expected: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._expect()

    @property
    def redelivered(self) -> int:
        """Deliveries of a batch that had been delivered before."""
        return self.deliveries - self._batches

    @property
    def steps(self) -> int:
        """Batches that are known to be acknowledged."""
        return len(self.step_times)

    def delivered(self, batch: Batch) -> None:
        """A whole batch went to the trainer."""
        self.deliveries += 1
        step = _step_of(batch.id)
        served = _Served(rows=tuple((row.task, identity(row.trajectory)) for row in batch.rows), version=batch.version)
        if step == self._batches:
            self._steps_are(step)  # it is served only when the one before is acknowledged, whoever heard of that
            self._batches += 1
            self._served = served
            self._check(batch, step)
            self.backend.step(batch)
            self._expect()
        elif step != self._batches - 1:
            self._note(Promise.TWICE, f"batch {batch.id} was served after batch {self._batches - 1}")
        elif served != self._served:
            self._note(Promise.CONTENT, f"batch {batch.id} was served again with other rows")

    def step_answered(self, report: StepReport, *, is_first: bool) -> None:
        """Dataflow said that a step is acknowledged."""
        step = _step_of(report.batch)
        if step >= self._batches:
            self._note(Promise.TWICE, f"batch {report.batch} is acknowledged, and was never served")
            return
        if is_first and step in self._first_answers:
            self._note(Promise.TWICE, f"batch {report.batch} was acknowledged twice as if for the first time")
        if is_first:
            self._first_answers.add(step)
        if report.version != step + 1:
            self._note(Promise.VERSIONS, f"batch {report.batch} made version {report.version}")
        self._steps_are(step + 1)

    def publish_asked(self, manifest: Manifest) -> None:
        """The trainer hands a version in: it must be the one that follows from the batches."""
        if manifest.root_hash != self.expected(manifest.version):
            message = f"version {manifest.version} does not follow from the batches that were acknowledged, in order"
            self._note(Promise.VERSIONS, message)

    def publish_answered(self, version: Version, *, is_new: bool) -> None:
        """The store has a version now."""
        if is_new and version in self.published:
            self._note(Promise.VERSIONS, f"the store took version {version} twice as if for the first time")
        newest = max(self.published, default=None)
        if newest is not None and version > newest + 1:
            self._note(Promise.VERSIONS, f"version {version} came after version {newest}")
        self.published[version] = self.expected(version)

    def expected(self, version: Version) -> bytes:
        """Root hash of a version, as it follows from the batches; empty for one that does not."""
        return self._expected[version] if version < len(self._expected) else b""

    def _steps_are(self, steps: int) -> None:
        while len(self.step_times) < steps:
            self.step_times.append(self.now())

    def _check(self, batch: Batch, step: int) -> None:
        if batch.version != step:
            self._note(Promise.VERSIONS, f"batch {batch.id} was put together for version {batch.version}")
        groups = list(dict.fromkeys(row.group for row in batch.rows))
        if len(groups) != self.rules.batch_groups:
            self._note(Promise.CONTENT, f"batch {batch.id} has {len(groups)} groups")
        for group in groups:
            if group in self.trained_in:
                self._note(Promise.TWICE, f"{group} is in batches {self.trained_in[group]} and {step} of {self.policy}")
            self.trained_in[group] = step
            self._check_group(batch, group)
        self._check_age(batch)

    def _check_group(self, batch: Batch, group: GroupId) -> None:
        """Every member that succeeded is there, with what was acknowledged for it."""
        rows: dict[TaskId, tuple[int, ...]] = {}
        for row in batch.rows:
            if row.group == group:
                rows[row.task] = (*rows.get(row.task, ()), identity(row.trajectory))
        for task, identities in rows.items():
            self.results.trained(task, self.policy, identities)
        for member, result in enumerate(self.results.members(group)):
            counted = result.counted
            if counted is not None and self.policy in counted.rows and TaskId(f"{group}/{member}") not in rows:
                self._note(Promise.LOST, f"batch {batch.id} has {group} without its member {member}")

    def _check_age(self, batch: Batch) -> None:
        for row in batch.rows:
            versions = [span.version for span in row.trajectory.spans if span.version is not None]
            oldest, newest = min(versions), max(versions)
            if oldest < batch.version - self.rules.max_staleness or newest > batch.version:
                message = (
                    f"{row.task} in batch {batch.id} (version {batch.version}) was written by {oldest} to {newest}"
                )
                self._note(Promise.STALE, message)

    def _expect(self) -> None:
        """What the weights are now is what the next version must be."""
        version = Version(len(self._expected))
        manifest, _ = build_layout(snapshot_of(self.backend).tensors, policy=self.policy, version=version)
        self._expected.append(manifest.root_hash)

    def _note(self, promise: Promise, message: str) -> None:
        self.violations.append(Violation(promise=promise, message=message))


def _step_of(batch: str) -> int:
    return int(batch.rpartition(":")[2])
