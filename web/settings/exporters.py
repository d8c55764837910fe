"""Exporters of a run (metrics, traces, autoscaler), read from its folder: states, and commands that enable them.

Nothing is requested or guessed: the exporters of a run whose folder is not readable on this machine are unknown.
"""

import asyncio
from dataclasses import dataclass
from urllib.parse import urlsplit

from astraflow.contract.errors import AstraFlowError
from astraflow.runtime.folders.run_folders import RunFacts, RunFolder, active_runs
from web.live.followed_run import FollowedRuns
from web.process_settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterFacts:
    """Known start facts of a run."""

    facts: RunFacts | None
    """None where its folder is unknown."""
    folder: str = ""
    problem: str = ""
    """Cause why its folder could not be read; empty otherwise."""


ON, OFF, UNKNOWN = "on", "off", "unknown"
TONES = {ON: "good", OFF: "off", UNKNOWN: "warn"}

FREE_PORT = "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """One exporter."""

    name: str
    description: str
    """Exported data and its consumer."""
    location: str | None
    """Address or folder; empty while it is off, None if that is unknown."""
    note: str
    """Hint about the location; may be empty."""
    key: str = ""
    """Recipe setting that enables it; empty where none is needed."""
    command: str

    @property
    def state(self) -> str:
        """Whether it is on, as a key of `TONES`."""
        return UNKNOWN if self.location is None else ON if self.location else OFF


def exporters(facts: RunFacts | None, settings: Settings, *, own_address: str) -> tuple[Exporter, ...]:
    """Returns all exporters. own_address: address of the web service, as the browser has it."""
    recipe = settings.recipe or (facts.recipe if facts is not None else "") or "RECIPE"
    return _metrics(facts, recipe), _traces(facts, recipe), _keda(facts, recipe), _page(own_address)


def _metrics(facts: RunFacts | None, recipe: str) -> Exporter:
    return Exporter(
        name="OpenMetrics",
        description="Dataflow serves the figures of the newest report to Prometheus and other scrapers.",
        location=facts.metrics if facts is not None else None,
        note="Outside loopback it requires the token in ASTRAFLOW_METRICS_TOKEN.",
        key='dataflow.metrics = "127.0.0.1:9464"',
        command=f"astraflow run {recipe} --set dataflow.metrics=127.0.0.1:9464",
    )


def _traces(facts: RunFacts | None, recipe: str) -> Exporter:
    target, _, share = facts.traces.rpartition("#") if facts is not None else ("", "", "")
    target, share = (target, share) if target else (share, "")
    scope = f"{float(share):.0%} of groups. " if _is_number(share) else ""
    return Exporter(
        name="OpenTelemetry traces",
        description="All processes write traces of groups: to a collector (OTLP over HTTP), or as JSON lines files.",
        location=public_address(target) if facts is not None else None,
        note=f"{scope}Needs the extra otel: pip install 'astraflow[otel]'.",
        key='tracing.to = "http://collector.example:4318"',
        command=f"astraflow run {recipe} --set tracing.to=traces",
    )


def _keda(facts: RunFacts | None, recipe: str) -> Exporter:
    location = facts.keda if facts is not None else None
    host, _, port = (location or "").rpartition(":")
    is_free = port == FREE_PORT
    return Exporter(
        name="KEDA external scaler",
        description="Dataflow serves the recommended size of a pool to an autoscaler on Kubernetes.",
        location=host if is_free else location,
        note="Uses a free port; dataflow's log names it (keda_ready)." if is_free else "",
        key="dataflow.keda.port = 9465",
        command=f"astraflow run {recipe} --set dataflow.keda.port=9465",
    )


def _page(own_address: str) -> Exporter:
    return Exporter(
        name="REST API",
        description="Reports, series, nodes, decisions and the audit log as JSON, CSV and NDJSON.",
        location=f"{own_address}/api/v1",
        note="Requires an API token, created above.",
        command=f'curl -H "Authorization: Bearer $TOKEN" {own_address}/api/v1/report',
    )


def public_address(address: str) -> str:
    """Returns a folder unchanged, and an address without user, password and query.

    >>> public_address("http://me:secret@collector.example:4318/in?key=1"), public_address("/runs/a/traces")
    ('http://collector.example:4318/in', '/runs/a/traces')
    """
    if "://" not in address:
        return address
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


async def exporter_facts(followed: FollowedRuns, settings: Settings) -> ExporterFacts:
    """Returns the facts of the shown run. A failure becomes part of the result and is never raised."""
    address = settings.dataflow
    folder = next((run.folder for run in followed.all if run.folder and run.settings.dataflow == address), None)
    try:
        return await asyncio.to_thread(_read, folder, address)
    except (AstraFlowError, OSError) as error:
        return ExporterFacts(facts=None, problem=str(error))


def _read(followed: RunFolder | None, address: str) -> ExporterFacts:
    folder = followed or next((run for run in active_runs() if address and run.facts.dataflow == address), None)
    return (
        ExporterFacts(facts=folder.facts, folder=str(folder.path)) if folder is not None else ExporterFacts(facts=None)
    )
