"""What is seen of weights on their way: from trainers into the store, and over links to nodes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from astraflow.contract.ids import PolicyId, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReport:
    """What one node had over one of its links, since its process began. What is fetched for evaluations is left out."""

    source: str
    """Address of the store or mirror at the other end."""
    versions: int = 0
    """Versions that came over it."""
    full_bytes: int = 0
    delta_bytes: int = 0
    shared_bytes: int = 0
    """Mapped on the same host: these did not travel."""
    fetch_s: float = 0.0
    """From the first request to the last byte."""
    decode_s: float = 0.0
    """Turning deltas into bits."""
    stage_s: float = 0.0
    """Bringing the version before beside itself."""
    verify_s: float = 0.0
    """Hashing."""
    pause_s: float = 0.0
    """Until the engine stood still."""
    apply_s: float = 0.0
    """While it took the version over."""
    resume_s: float = 0.0
    """Until it wrote again."""
    resumes: int = 0
    """Breaks of the link that were got over."""
    failures: int = 0
    """Times that it was left for another one: it was down, stuck, or sent what was not true."""
    latest_bytes: int = 0
    """That travelled for the latest version."""
    latest_fetch_s: float = 0.0
    """The same."""
    latest_behind: int = 0
    """Versions that the node was behind when it fetched the latest one; 0 for its first."""
    latest_changed_share: float = 0.0
    """Of the elements, those that the latest version changed against what the node had; 0 for a full snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionReport:
    """What publishing one version took. Seconds are the trainer's."""

    version: Version
    published_at: float
    """Unix seconds at the trainer, when the store had it."""
    full_bytes: int
    sent_bytes: int
    """Less than `full_bytes` when it went as a delta."""
    changed_elements: int = 0
    elements: int = 0
    """Elements that differ from the version before, of how many; both 0 when not known."""
    copy_s: float = 0.0
    """The trainer waited."""
    hash_s: float = 0.0
    encode_s: float = 0.0
    send_s: float = 0.0

    @property
    def changed_share(self) -> float | None:
        """Of the elements; None when not known."""
        return self.changed_elements / self.elements if self.elements else None

    def metrics(self) -> dict[str, float]:
        """As a trainer tells it with its next step: these figures are known only then."""
        return {metric: float(getattr(self, name)) for metric, name in _METRICS.items()}

    @classmethod
    def told(cls, metrics: Mapping[str, float]) -> Self | None:
        """What a trainer told; None when it told of no version.

        >>> told = VersionReport(version=Version(3), published_at=1.5, full_bytes=8, sent_bytes=2)
        >>> VersionReport.told({"loss": 0.1, **told.metrics()}) == told, VersionReport.told({"loss": 0.1})
        (True, None)
        """
        figures: dict[str, Any] = {name: metrics.get(metric, math.nan) for metric, name in _METRICS.items()}
        if not all(map(math.isfinite, figures.values())):
            return None
        whole: dict[str, Any] = {name: max(0, int(figures.pop(name))) for name in _COUNTS}
        return cls(version=Version(whole.pop("version")), **whole, **figures)


_COUNTS = ("version", "full_bytes", "sent_bytes", "changed_elements", "elements")
_METRICS = {
    "published_at": "published_at",
    **{f"published_{name}": name for name in (*_COUNTS, "copy_s", "hash_s", "encode_s", "send_s")},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsReport:
    """The versions that one policy's trainer published lately, oldest first."""

    policy: PolicyId
    versions: tuple[VersionReport, ...]
