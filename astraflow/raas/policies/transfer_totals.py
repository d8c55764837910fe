"""Weight transfer totals of a node by source, for its heartbeats."""

from collections.abc import Callable
from dataclasses import replace

from astraflow.contract.weight_reports import LinkReport
from astraflow.raas.engines.base import LoadTimings
from astraflow.weights.transfer.puller import TransferStats
from astraflow.weights.transfer.weight_sources import WeightSource

_SUMMED = (
    "full_bytes",
    "delta_bytes",
    "shared_bytes",
    "fetch_s",
    "decode_s",
    "stage_s",
    "verify_s",
    "resumes",
)
"""Fields of `TransferStats` that are summed."""


class TransferTotals:
    """Sums transfers and loads by source, over all policies."""

    def __init__(self, sources: Callable[[], tuple[WeightSource, ...]] = tuple) -> None:
        """sources: returns the weight sources of the node; empty before they are connected."""
        self._sources = sources
        self._reports: dict[str, LinkReport] = {}

    def record_transfer(self, stats: TransferStats) -> None:
        """Adds the transfer of a version."""
        before = self._report_of(stats.source)
        self._reports[stats.source] = replace(
            before,
            versions=before.versions + 1,
            latest_bytes=stats.full_bytes + stats.delta_bytes,
            latest_fetch_s=stats.fetch_s,
            latest_versions_behind=stats.versions_behind,
            latest_changed_share=(stats.changed_elements or 0) / stats.elements,
            **{name: getattr(before, name) + getattr(stats, name) for name in _SUMMED},
        )

    def record_load(self, source: str, load: LoadTimings) -> None:
        """Adds the load of a version from a source into an engine."""
        before = self._report_of(source)
        self._reports[source] = replace(
            before,
            stage_s=before.stage_s + load.stage_s,
            pause_s=before.pause_s + load.pause_s,
            apply_s=before.apply_s + load.apply_s,
            resume_s=before.resume_s + load.resume_s,
        )

    def reports(self) -> tuple[LinkReport, ...]:
        """Returns a report for every source in order of preference, including unused sources."""
        sources = {source.name: source for source in self._sources()}
        connected = [replace(self._report_of(name), failures=source.failures) for name, source in sources.items()]
        return (*connected, *(report for name, report in self._reports.items() if name not in sources))

    def _report_of(self, source: str) -> LinkReport:
        return self._reports.get(source) or LinkReport(source=source)
