"""One policy's batches, steps and versions as seen on the wire, and the weights that must follow from them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from astraflow.contract.batches import Batch, StepReport
from astraflow.contract.ids import GroupId, PolicyId, TaskId, Version
from astraflow.contract.weights import Manifest
from astraflow.trainer.backends.base import Backend
from astraflow.weights.tensors import build_layout
from soak.results import Results, identity, recorded_columns
from soak.rules import Invariant, StreamRules, Violation
from tests.snapshots import snapshot_of

UNACKNOWLEDGED = 1
"""Trained batches whose acknowledgement a trainer may delay while it trains the next one. Count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """Content of a delivered batch."""

    rows: tuple[tuple[TaskId, int], ...]
    version: Version


@dataclass(slots=True)
class Lineage:
    """Batch n leads from version n to version n + 1.

    The weights of the scripted trainer follow from its batches, so the ledger computes them as well: its result for
    a version must equal the published one bit for bit, despite all kills. A batch that was trained twice,
    left out, or changed on a second delivery would change the bits of all later versions.
    """

    policy: PolicyId
    rules: StreamRules
    results: Results
    backend: Backend
    now: Callable[[], float]
    violations: list[Violation] = field(default_factory=list)
    trained_in: dict[GroupId, int] = field(default_factory=dict)
    """Batch of each group that was ever served."""
    step_times: list[float] = field(default_factory=list)
    """Times when each step was known to be acknowledged: at most `UNACKNOWLEDGED` of the served ones are not."""
    deliveries: int = 0
    column_tokens: int = 0
    """Tokens of batches that came with a recorded column."""
    published: dict[Version, bytes] = field(default_factory=dict)
    """Root hash of each version that the store acknowledged."""
    _served: dict[int, _Served] = field(default_factory=dict)
    """Batches that may be delivered again, by step."""
    _batches: int = 0
    _first_answers: set[int] = field(default_factory=set)
    _expected: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._expect()

    @property
    def redelivered(self) -> int:
        """Returns how many deliveries repeated a batch."""
        return self.deliveries - self._batches

    @property
    def steps(self) -> int:
        """Returns the number of acknowledged batches."""
        return len(self.step_times)

    def delivered(self, batch: Batch) -> None:
        """Records that a whole batch reached the trainer."""
        self.deliveries += 1
        step = _step_of(batch.id)
        served = _Served(rows=tuple((row.task, identity(row.trajectory)) for row in batch.rows), version=batch.version)
        if step == self._batches:
            self._steps_are(step - UNACKNOWLEDGED)
            self._batches += 1
            columned = (row.trajectory for row in batch.rows if recorded_columns(row.trajectory))
            self.column_tokens += sum(trajectory.model_tokens for trajectory in columned)
            self._served[step] = served
            self._served.pop(step - UNACKNOWLEDGED - 1, None)
            self._check(batch, step)
            self.backend.step(batch)
            self._expect()
        elif step not in self._served or (step < self._batches - 1 and step < self.steps):
            self._note(Invariant.TWICE, f"batch {batch.id} was served after batch {self._batches - 1}")
        elif served != self._served[step]:
            self._note(Invariant.CONTENT, f"batch {batch.id} was served again with other rows")

    def step_answered(self, report: StepReport, *, is_first: bool) -> None:
        """Records that dataflow acknowledged a step."""
        step = _step_of(report.batch)
        if step >= self._batches:
            self._note(Invariant.TWICE, f"batch {report.batch} is acknowledged, and was never served")
            return
        if is_first and step in self._first_answers:
            self._note(Invariant.TWICE, f"batch {report.batch} was acknowledged twice as if for the first time")
        if is_first:
            self._first_answers.add(step)
        if report.version != step + 1:
            self._note(Invariant.VERSIONS, f"batch {report.batch} made version {report.version}")
        self._steps_are(step + 1)

    def publish_asked(self, manifest: Manifest) -> None:
        """Checks that the version of the trainer follows from the batches."""
        if manifest.root_hash != self.expected(manifest.version):
            message = f"version {manifest.version} does not follow from the batches that were acknowledged, in order"
            self._note(Invariant.VERSIONS, message)

    def publish_answered(self, version: Version, *, is_new: bool) -> None:
        """Records that the store has a version."""
        if is_new and version in self.published:
            self._note(Invariant.VERSIONS, f"the store took version {version} twice as if for the first time")
        newest = max(self.published, default=None)
        if newest is not None and version > newest + 1:
            self._note(Invariant.VERSIONS, f"version {version} came after version {newest}")
        self.published[version] = self.expected(version)

    def expected(self, version: Version) -> bytes:
        """Returns the root hash of a version that follows from the batches; empty for any other version."""
        return self._expected[version] if version < len(self._expected) else b""

    def _steps_are(self, steps: int) -> None:
        while len(self.step_times) < steps:
            self.step_times.append(self.now())

    def _check(self, batch: Batch, step: int) -> None:
        if batch.version != step:
            self._note(Invariant.VERSIONS, f"batch {batch.id} was put together for version {batch.version}")
        groups = list(dict.fromkeys(row.group for row in batch.rows))
        if len(groups) != self.rules.batch_groups:
            self._note(Invariant.CONTENT, f"batch {batch.id} has {len(groups)} groups")
        for group in groups:
            if group in self.trained_in:
                self._note(
                    Invariant.TWICE, f"{group} is in batches {self.trained_in[group]} and {step} of {self.policy}"
                )
            self.trained_in[group] = step
            self._check_group(batch, group)
        self._check_age(batch)

    def _check_group(self, batch: Batch, group: GroupId) -> None:
        """Checks that every successful member is present, with its acknowledged content."""
        rows: dict[TaskId, tuple[int, ...]] = {}
        for row in batch.rows:
            if row.group == group:
                rows[row.task] = (*rows.get(row.task, ()), identity(row.trajectory))
        for task, identities in rows.items():
            self.results.trained(task, self.policy, identities)
        for member, result in enumerate(self.results.members(group)):
            counted = result.counted
            if counted is not None and self.policy in counted.rows and TaskId(f"{group}/{member}") not in rows:
                self._note(Invariant.LOST, f"batch {batch.id} has {group} without its member {member}")

    def _check_age(self, batch: Batch) -> None:
        for row in batch.rows:
            versions = [span.version for span in row.trajectory.spans if span.version is not None]
            oldest, newest = min(versions), max(versions)
            if oldest < batch.version - self.rules.max_staleness or newest > batch.version:
                message = (
                    f"{row.task} in batch {batch.id} (version {batch.version}) was written by {oldest} to {newest}"
                )
                self._note(Invariant.STALE, message)

    def _expect(self) -> None:
        """Expects the current weights as the next version."""
        version = Version(len(self._expected))
        manifest, _ = build_layout(snapshot_of(self.backend).tensors, policy=self.policy, version=version)
        self._expected.append(manifest.root_hash)

    def _note(self, promise: Invariant, message: str) -> None:
        self.violations.append(Violation(promise=promise, message=message))


def _step_of(batch: str) -> int:
    return int(batch.rpartition(":")[2])
