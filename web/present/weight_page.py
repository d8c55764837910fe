"""The page of the weights: versions and what publishing them took, links and what they bring, who is behind."""

from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.contract.links import LinkReport, VersionReport
from astraflow.contract.reports import NodeReport, Report
from web.present import formats
from web.present.cells import visible_nodes

ROWS = 200
"""Links shown, those that are furthest behind first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRow:
    """One version of one policy."""

    version: str
    at: float
    """Unix seconds."""
    size: str
    sent: str
    saved: str
    changed: str
    copy_s: str
    hash_s: str
    encode_s: str
    send_s: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTable:
    """The latest versions of one policy, newest first."""

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
    """All tables."""

    has_report: bool
    policies: Sequence[PolicyTable]
    links: Sequence[LinkRow]
    left_out: str
    """How many links are not shown; empty when all are."""


PHASES = ("fetch", "decode", "stage", "verify", "pause", "apply", "resume")


def weight_page(report: Report | None) -> WeightPage:
    """What there is to see now."""
    if report is None:
        return WeightPage(has_report=False, policies=(), links=(), left_out="")
    nodes = [(max(report.lag(node).values(), default=0), node) for node in visible_nodes(report)]
    nodes.sort(key=lambda one: (-one[0], one[1].facts.name, one[1].id))
    found = [(lag, node, link) for lag, node in nodes for link in node.links]
    return WeightPage(
        has_report=True,
        policies=[
            PolicyTable(policy=weights.policy, rows=[_version(version) for version in reversed(weights.versions)])
            for weights in report.weights
            if weights.versions
        ],
        links=[link_row(lag, node, link) for lag, node, link in found[:ROWS]],
        left_out=f"{formats.several(len(found) - ROWS, 'more link')}" if len(found) > ROWS else "",
    )


def _version(version: VersionReport) -> VersionRow:
    share, saved = version.changed_share, 1 - version.sent_bytes / version.full_bytes if version.full_bytes else 0.0
    return VersionRow(
        version=f"v{version.version}",
        at=version.published_at,
        size=formats.size(version.full_bytes),
        sent=formats.size(version.sent_bytes),
        saved=formats.percent(saved) if saved > 0 else formats.MISSING,
        changed=formats.percent(share) if share is not None else formats.MISSING,
        copy_s=formats.duration(version.copy_s),
        hash_s=formats.duration(version.hash_s),
        encode_s=formats.duration(version.encode_s),
        send_s=formats.duration(version.send_s),
    )


def link_row(lag: int, node: NodeReport, link: LinkReport) -> LinkRow:
    """One link of a node, for a table."""
    travelled = link.full_bytes + link.delta_bytes
    means = [getattr(link, f"{phase}_s") / link.versions if link.versions else None for phase in PHASES]
    return LinkRow(
        node=node.facts.name,
        region=node.facts.region,
        source=link.source,
        lag=formats.several(lag, "version") if lag else "none",
        lag_tone="warning" if lag > 1 else "",
        versions=formats.count(link.versions),
        received=formats.size(travelled) + (f" and {formats.size(link.shared_bytes)} shared" * bool(link.shared_bytes)),
        latest=formats.size(link.latest_bytes),
        changed=formats.percent(link.latest_changed_share) if link.latest_changed_share else formats.MISSING,
        rate=f"{formats.size(link.latest_bytes / link.latest_fetch_s)}/s" if link.latest_fetch_s else formats.MISSING,
        phases=[formats.duration(mean) for mean in means],
        resumes=formats.count(link.resumes),
        failures=formats.count(link.failures),
        failures_tone="bad" if link.failures else "",
    )
