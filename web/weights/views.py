"""Weights page: versions with their publish times, links with their throughput, and nodes that lag behind."""

from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.contract.reports.report import NodeReport, Report
from astraflow.contract.weight_reports import LinkReport, VersionReport
from web.components import formats
from web.components.live_texts import present_nodes
from web.weights.tables import Laggard, RegionRow, laggards, region_rows

MAX_LINKS = 200
"""Maximum number of links shown; links of nodes that lag most come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRow:
    """One version of one policy."""

    version: str
    at: float
    """Unix seconds."""
    size: str
    sent: str
    sent_share: float
    """Share of the full size, at most 1."""
    saved: str
    changed: str
    copy_s: str
    hash_s: str
    encode_s: str
    send_s: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTable:
    """Latest versions of one policy, newest first."""

    policy: str
    rows: Sequence[VersionRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRow:
    """One link of one node. Seconds are means over its versions."""

    node: str
    region: str
    source: str
    lag: str
    lag_tone: str
    versions: str
    received: str
    latest: str
    changed: str
    rate: str
    phases: Sequence[str]
    resumes: str
    failures: str
    failures_tone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPage:
    """View model of the page."""

    has_report: bool
    insight: str
    tone: str
    policies: Sequence[PolicyTable]
    laggards: Sequence[Laggard]
    more_laggards: str
    regions: Sequence[RegionRow]
    links: Sequence[LinkRow]
    omitted_links: str
    """Number of links that are not shown, in words; empty when all are shown."""


PHASES = ("fetch", "decode", "stage", "verify", "pause", "apply", "resume")


def weight_page(report: Report | None) -> WeightPage:
    """Builds the page from the newest report."""
    if report is None:
        return WeightPage(
            has_report=False,
            insight="",
            tone="",
            policies=(),
            laggards=(),
            more_laggards="",
            regions=(),
            links=(),
            omitted_links="",
        )
    late = laggards(report)
    insight, tone = _insight(report, late)
    nodes = [(max(report.lag(node).values(), default=0), node) for node in present_nodes(report)]
    nodes.sort(key=lambda item: (-item[0], item[1].facts.name, item[1].id))
    links = [(node, link) for _, node in nodes for link in node.links]
    return WeightPage(
        has_report=True,
        insight=insight,
        tone=tone,
        policies=[
            PolicyTable(policy=weights.policy, rows=[_version(version) for version in reversed(weights.versions)])
            for weights in report.weights
            if weights.versions
        ],
        laggards=late[:MAX_LINKS],
        more_laggards=formats.several(len(late) - MAX_LINKS, "more node") if len(late) > MAX_LINKS else "",
        regions=region_rows(report),
        links=[_row(report, node, link) for node, link in links[:MAX_LINKS]],
        omitted_links=f"{formats.several(len(links) - MAX_LINKS, 'more link')}" if len(links) > MAX_LINKS else "",
    )


def _insight(report: Report, late: Sequence[Laggard]) -> tuple[str, str]:
    nodes = len([node for node in present_nodes(report) if node.versions])
    if not nodes:
        return "No node serves a version yet", ""
    beyond = sorted({laggard.node for laggard in late if laggard.is_beyond})
    if beyond:
        names = ", ".join(beyond[:3]) + (f" and {len(beyond) - 3} more" if len(beyond) > 3 else "")
        verb = "is" if len(beyond) == 1 else "are"
        return f"{formats.several(len(beyond), 'node')} {verb} beyond the staleness bound: {names}", "bad"
    behind = len({laggard.node for laggard in late})
    if behind:
        return f"{formats.count(behind)} of {formats.several(nodes, 'node')} behind, none beyond the bound", "good"
    return "Every node serves the newest version", "good"


def _version(version: VersionReport) -> VersionRow:
    share, saved = version.changed_share, 1 - version.sent_bytes / version.full_bytes if version.full_bytes else 0.0
    return VersionRow(
        version=f"v{version.version}",
        at=version.published_at,
        size=formats.size(version.full_bytes),
        sent=formats.size(version.sent_bytes),
        sent_share=min(1.0, version.sent_bytes / version.full_bytes) if version.full_bytes else 0.0,
        saved=formats.percent(saved) if saved > 0 else formats.MISSING,
        changed=formats.percent(share) if share is not None else formats.MISSING,
        copy_s=formats.duration(version.copy_s),
        hash_s=formats.duration(version.hash_s),
        encode_s=formats.duration(version.encode_s),
        send_s=formats.duration(version.send_s),
    )


def _row(report: Report, node: NodeReport, link: LinkReport) -> LinkRow:
    lags = report.lag(node)
    bounds = {stream.policy: stream.max_staleness for stream in report.streams}
    is_beyond = any(behind > bounds[policy] for policy, behind in lags.items())
    return link_row(max(lags.values(), default=0), node, link, is_beyond=is_beyond)


def link_row(lag: int, node: NodeReport, link: LinkReport, *, is_beyond: bool = False) -> LinkRow:
    """Returns the table row of a node's link. is_beyond: whether its lag exceeds the staleness bound."""
    transferred = link.full_bytes + link.delta_bytes
    means = [getattr(link, f"{phase}_s") / link.versions if link.versions else None for phase in PHASES]
    return LinkRow(
        node=node.facts.name,
        region=node.facts.region,
        source=link.source,
        lag=formats.several(lag, "version") if lag else "none",
        lag_tone="bad" if is_beyond else "" if lag else "good",
        versions=formats.count(link.versions),
        received=formats.size(transferred)
        + (f" and {formats.size(link.shared_bytes)} shared" * bool(link.shared_bytes)),
        latest=formats.size(link.latest_bytes),
        changed=formats.percent(link.latest_changed_share) if link.latest_changed_share else formats.MISSING,
        rate=f"{formats.size(link.latest_bytes / link.latest_fetch_s)}/s" if link.latest_fetch_s else formats.MISSING,
        phases=[formats.duration(mean) for mean in means],
        resumes=formats.count(link.resumes),
        failures=formats.count(link.failures),
        failures_tone="bad" if link.failures else "",
    )
