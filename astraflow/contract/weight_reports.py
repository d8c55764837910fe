"""Measurements of weight transfers: from trainers into the store, and over links to nodes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from astraflow.contract.ids import PolicyId, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReport:
    """Statistics of one link of a node since its process began. Fetches for evaluations are excluded."""

    source: str
    """Address of the store or mirror at the other end."""
    versions: int = 0
    """Versions fetched over the link."""
    full_bytes: int = 0
    """Bytes of snapshots fetched over the link."""
    delta_bytes: int = 0
    """Bytes of deltas fetched over the link."""
    shared_bytes: int = 0
    """Bytes mapped on the same host; they did not cross the network."""
    fetch_s: float = 0.0
    """From the first request to the last byte."""
    decode_s: float = 0.0
    """Decoding deltas."""
    stage_s: float = 0.0
    """Copying the previous version to the staging buffer."""
    verify_s: float = 0.0
    """Hashing."""
    pause_s: float = 0.0
    """Until the engine had paused."""
    apply_s: float = 0.0
    """While the engine applied the version."""
    resume_s: float = 0.0
    """Until the engine generated again."""
    resumes: int = 0
    """Interrupted transfers that were resumed."""
    failures: int = 0
    """Switches to another link because this link was down, stuck or sent invalid data."""
    latest_bytes: int = 0
    """Bytes transferred for the latest version."""
    latest_fetch_s: float = 0.0
    """Seconds of the transfer of the latest version."""
    latest_versions_behind: int = 0
    """Versions by which the node was behind when it fetched the latest one; 0 for its first."""
    latest_changed_share: float = 0.0
    """Share of elements that differ between the latest version and the node's previous one; 0 for a full snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionReport:
    """Cost of publishing one version. Seconds are the trainer's."""

    version: Version
    """Number of the version."""
    published_at: float
    """Unix seconds at the trainer when the store had the version."""
    full_bytes: int
    """Size of a snapshot. Bytes."""
    sent_bytes: int
    """Bytes sent; less than `full_bytes` for a delta."""
    changed_elements: int = 0
    """Elements that differ from the previous version. Count; 0 when unknown."""
    elements: int = 0
    """All elements. Count; 0 when unknown."""
    copy_s: float = 0.0
    """Copying the weights out while the trainer waits."""
    hash_s: float = 0.0
    """Hashing. Seconds."""
    encode_s: float = 0.0
    """Encoding the delta. Seconds."""
    send_s: float = 0.0
    """Sending to the store. Seconds."""

    @property
    def changed_share(self) -> float | None:
        """Share of elements that changed; None when unknown."""
        return self.changed_elements / self.elements if self.elements else None

    def metrics(self) -> dict[str, float]:
        """Returns the figures as metrics of the trainer's next step: they are only known then."""
        return {metric: float(getattr(self, name)) for metric, name in _METRICS.items()}

    @classmethod
    def from_metrics(cls, metrics: Mapping[str, float]) -> Self | None:
        """Returns the report in a trainer's metrics; None if they describe no version.

        >>> report = VersionReport(version=Version(3), published_at=1.5, full_bytes=8, sent_bytes=2)
        >>> metrics = {"loss": 0.1, **report.metrics()}
        >>> VersionReport.from_metrics(metrics) == report, VersionReport.from_metrics({"loss": 0.1})
        (True, None)
        """
        figures: dict[str, Any] = {name: metrics.get(metric, math.nan) for metric, name in _METRICS.items()}
        if not all(map(math.isfinite, figures.values())):
            return None
        counts: dict[str, Any] = {name: max(0, int(figures.pop(name))) for name in _COUNTS}
        return cls(version=Version(counts.pop("version")), **counts, **figures)


_COUNTS = ("version", "full_bytes", "sent_bytes", "changed_elements", "elements")
_METRICS = {
    "published_at": "published_at",
    **{f"published_{name}": name for name in (*_COUNTS, "copy_s", "hash_s", "encode_s", "send_s")},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsReport:
    """Latest versions that one policy's trainer published, oldest first."""

    policy: PolicyId
    """Policy of the versions."""
    versions: tuple[VersionReport, ...]
    """Versions, oldest first."""
