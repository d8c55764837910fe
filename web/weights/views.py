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
class LinkRow:
    """One link of one node."""

    node: NodeReport
    link: LinkReport
    lag: int
    """Largest number of versions that the node is behind. Count."""
    is_beyond: bool
    """Whether its lag exceeds the staleness bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPage:
    """View model of the page."""

    has_report: bool
    insight: str
    tone: str
    policies: Sequence[tuple[str, Sequence[VersionReport]]]
    """Policies with their latest versions, newest first."""
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
        policies=[(weights.policy, weights.versions[::-1]) for weights in report.weights if weights.versions],
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


def _row(report: Report, node: NodeReport, link: LinkReport) -> LinkRow:
    lags = report.lag(node)
    bounds = {stream.policy: stream.max_staleness for stream in report.streams}
    is_beyond = any(behind > bounds[policy] for policy, behind in lags.items())
    return LinkRow(node=node, link=link, lag=max(lags.values(), default=0), is_beyond=is_beyond)
