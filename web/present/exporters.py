"""What a run exports where: on or off, and what to type to have it otherwise."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from astraflow.runtime.runs import RunFacts
from web.reading.exporters import Exports
from web.settings import Settings

ON, OFF, UNKNOWN = "on", "off", "not known here"
TONES = {ON: "good", OFF: "off", UNKNOWN: "warn"}

FREE_PORT = "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterRow:
    """One way out."""

    name: str
    what: str
    """What goes there, and who reads it."""
    state: str
    tone: str
    place: str
    """An address or a folder; empty for nowhere."""
    note: str
    """What is to be known of that place; may be empty."""
    key: str
    """What a recipe says to have it; empty where nothing has to be said."""
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportersView:
    """All of them."""

    folder: str
    problem: str
    is_known: bool
    rows: tuple[ExporterRow, ...]


def exporters_view(exports: Exports, settings: Settings, *, own_address: str) -> ExportersView:
    """What is known. own_address: of this page, as the browser has it."""
    facts = exports.facts
    recipe = settings.recipe or (facts.recipe if facts is not None else "") or "RECIPE"
    return ExportersView(
        folder=exports.folder,
        problem=exports.problem,
        is_known=facts is not None,
        rows=(_metrics(facts, recipe), _traces(facts, recipe), _keda(facts, recipe), _page(own_address)),
    )


def _metrics(facts: RunFacts | None, recipe: str) -> ExporterRow:
    return _row(
        facts,
        name="OpenMetrics",
        what="Dataflow serves every figure of the newest report to Prometheus and whatever else scrapes it.",
        place=facts.metrics if facts is not None else "",
        note="Beyond loopback it wants the token in ASTRAFLOW_METRICS_TOKEN.",
        key='dataflow.metrics = "127.0.0.1:9464"',
        command=f"astraflow run {recipe} --set dataflow.metrics=127.0.0.1:9464",
    )


def _traces(facts: RunFacts | None, recipe: str) -> ExporterRow:
    to, _, share = facts.traces.rpartition("#") if facts is not None else ("", "", "")
    to, share = (to, share) if to else (share, "")
    of = f"{float(share):.0%} of groups. " if _is_number(share) else ""
    return _row(
        facts,
        name="OpenTelemetry traces",
        what="All processes write the way of a group, hop by hop: to a collector (OTLP over HTTP), or as files of JSON "
        "lines.",
        place=shown_place(to),
        note=f"{of}Needs the extra otel: pip install 'astraflow[otel]'.",
        key='tracing.to = "http://collector.example:4318"',
        command=f"astraflow run {recipe} --set tracing.to=traces",
    )


def _keda(facts: RunFacts | None, recipe: str) -> ExporterRow:
    place = facts.keda if facts is not None else ""
    host, _, port = place.rpartition(":")
    is_free = port == FREE_PORT
    return _row(
        facts,
        name="KEDA external scaler",
        what="Dataflow answers with the advised size of a pool, for an autoscaler on Kubernetes to follow.",
        place=host if is_free else place,
        note="A free port was taken: dataflow's log says which (keda_ready)." if is_free else "",
        key="dataflow.keda.port = 9465",
        command=f"astraflow run {recipe} --set dataflow.keda.port=9465",
    )


def _page(own_address: str) -> ExporterRow:
    return ExporterRow(
        name="This page's API",
        what="Reports, series, nodes, decisions and the audit as JSON, CSV and NDJSON: exactly what the pages show.",
        state=ON,
        tone=TONES[ON],
        place=f"{own_address}/api/v1",
        note="Programs show a token, made above.",
        key="",
        command=f'curl -H "Authorization: Bearer $TOKEN" {own_address}/api/v1/report',
    )


def _row(facts: RunFacts | None, *, name: str, what: str, place: str, note: str, key: str, command: str) -> ExporterRow:
    state = UNKNOWN if facts is None else ON if place else OFF
    return ExporterRow(
        name=name, what=what, state=state, tone=TONES[state], place=place, note=note, key=key, command=command
    )


def shown_place(place: str) -> str:
    """A folder as it is; an address without the user, the password and the query that may be in it.

    >>> shown_place("http://me:secret@collector.example:4318/in?key=1"), shown_place("/runs/a/traces")
    ('http://collector.example:4318/in', '/runs/a/traces')
    """
    if "://" not in place:
        return place
    parts = urlsplit(place)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()
