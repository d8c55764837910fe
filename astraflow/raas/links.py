"""What a node's links brought, for its beats."""

from collections.abc import Callable
from dataclasses import replace

from astraflow.contract.links import LinkReport
from astraflow.raas.engines.base import EngineLoad
from astraflow.weights.origins import Origin
from astraflow.weights.puller import TransferStats

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
"""Fields of `TransferStats` that add up."""


class Links:
    """Adds up by source, over all policies."""

    def __init__(self, origins: Callable[[], tuple[Origin, ...]] = tuple) -> None:
        """origins: those that the node has, once it has them."""
        self._origins = origins
        self._reports: dict[str, LinkReport] = {}

    def pulled(self, stats: TransferStats) -> None:
        """A version came."""
        before = self._of(stats.origin)
        self._reports[stats.origin] = replace(
            before,
            versions=before.versions + 1,
            latest_bytes=stats.full_bytes + stats.delta_bytes,
            latest_fetch_s=stats.fetch_s,
            latest_behind=stats.behind,
            latest_changed_share=(stats.changed_elements or 0) / stats.elements,
            **{name: getattr(before, name) + getattr(stats, name) for name in _SUMMED},
        )

    def loaded(self, source: str, load: EngineLoad) -> None:
        """An engine took over what came from there."""
        before = self._of(source)
        self._reports[source] = replace(
            before,
            stage_s=before.stage_s + load.stage_s,
            pause_s=before.pause_s + load.pause_s,
            apply_s=before.apply_s + load.apply_s,
            resume_s=before.resume_s + load.resume_s,
        )

    def reports(self) -> tuple[LinkReport, ...]:
        """Every source, in order of preference, those too that brought nothing yet."""
        origins = {origin.name: origin for origin in self._origins()}
        found = [replace(self._of(name), failures=origin.failures) for name, origin in origins.items()]
        return (*found, *(report for name, report in self._reports.items() if name not in origins))

    def _of(self, source: str) -> LinkReport:
        return self._reports.get(source) or LinkReport(source=source)
