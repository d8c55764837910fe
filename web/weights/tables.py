"""Weights tables as data: versions, transfers per region, laggards and links. Used by pages and downloads."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Literal

from astraflow.contract.reports.report import Report
from astraflow.contract.weight_reports import LinkReport
from web.components.downloads import Sheet
from web.components.live_texts import present_nodes, visible_nodes

TableName = Literal["versions", "regions", "laggards", "links"]
"""Tables that can be downloaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Laggard:
    """Node that serves an older version than the newest."""

    node: str
    """Name of the node."""
    region: str
    """Region of the node."""
    policy: str
    """Policy of the versions."""
    serves: str
    """Version that the node serves: `v11`."""
    newest: str
    """Newest version of the policy: `v12`."""
    behind: int
    """Lag in versions. Count."""
    bound: int
    """Staleness bound in versions. Count."""
    state: str
    """State of the node."""

    @property
    def is_beyond(self) -> bool:
        """Whether episodes that it starts now may be too stale to train on."""
        return self.behind > self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRow:
    """All links from one source into one region."""

    region: str
    """Region of the nodes."""
    source: str
    """Address of the store or mirror at the other end."""
    nodes: int
    """Links, one for each node. Count."""
    versions: int
    """Versions fetched over the links. Count."""
    full_bytes: int
    """Bytes of snapshots."""
    delta_bytes: int
    """Bytes of deltas."""
    shared_bytes: int
    """Bytes mapped from shared memory on the same host, not transferred."""
    fetch_s: float | None
    """Mean time of a fetch over all versions. Seconds; None before the first version."""
    slowest_s: float | None
    """Longest fetch of the latest version. Seconds; None before the first version."""
    bytes_per_s: float | None
    """Transfer rate of all fetches. Bytes per second; None without a transfer."""
    breaks: int
    """Interrupted fetches, resumed or moved to another source. Count."""


def laggards(report: Report) -> list[Laggard]:
    """Returns the nodes that serve an older version than the newest, largest lag first."""
    streams = {stream.policy: stream for stream in report.streams}
    rows = [
        Laggard(
            node=node.facts.name,
            region=node.facts.region,
            policy=policy,
            serves=f"v{node.versions[policy]}",
            newest=f"v{streams[policy].version}",
            behind=lag,
            bound=streams[policy].max_staleness,
            state=node.state.value,
        )
        for node in present_nodes(report)
        for policy, lag in report.lag(node).items()
        if lag
    ]
    return sorted(rows, key=lambda laggard: (laggard.bound - laggard.behind, laggard.node, laggard.policy))


def region_rows(report: Report) -> list[RegionRow]:
    """Returns the transfers from each source into each region, with the time per version."""
    links: dict[tuple[str, str], list[LinkReport]] = {}
    for node in visible_nodes(report):
        for link in node.links:
            links.setdefault((node.facts.region, link.source), []).append(link)
    rows = []
    for (region, source), region_links in sorted(links.items()):
        versions = sum(link.versions for link in region_links)
        seconds = sum(link.fetch_s for link in region_links)
        transferred = sum(link.full_bytes + link.delta_bytes for link in region_links)
        rows.append(
            RegionRow(
                region=region,
                source=source,
                nodes=len(region_links),
                versions=versions,
                full_bytes=sum(link.full_bytes for link in region_links),
                delta_bytes=sum(link.delta_bytes for link in region_links),
                shared_bytes=sum(link.shared_bytes for link in region_links),
                fetch_s=seconds / versions if versions else None,
                slowest_s=max(link.latest_fetch_s for link in region_links) if versions else None,
                bytes_per_s=transferred / seconds if seconds else None,
                breaks=sum(link.resumes + link.failures for link in region_links),
            )
        )
    return rows


def weight_sheet(report: Report | None, table: TableName) -> Sheet:
    """Returns one of the tables as a sheet; sizes in bytes, times in seconds."""
    columns, rows = _SHEETS[table]
    return Sheet(name=f"astraflow-weights-{table}", columns=columns, rows=list(rows(report)) if report else ())


def _version_rows(report: Report) -> Iterator[Sequence[object]]:
    for weights in report.weights:
        for version in reversed(weights.versions):
            yield (
                weights.policy,
                int(version.version),
                version.published_at,
                version.full_bytes,
                version.sent_bytes,
                version.changed_share,
                *(version.copy_s, version.hash_s, version.encode_s, version.send_s),
            )


def _region_rows(report: Report) -> Iterator[Sequence[object]]:
    return (tuple(asdict(row).values()) for row in region_rows(report))


def _laggard_rows(report: Report) -> Iterator[Sequence[object]]:
    return ((*asdict(laggard).values(), laggard.is_beyond) for laggard in laggards(report))


def _link_rows(report: Report) -> Iterator[Sequence[object]]:
    for node in visible_nodes(report):
        for link in node.links:
            yield (node.facts.name, node.facts.region, *asdict(link).values())


_SHEETS: Mapping[str, tuple[Sequence[str], Callable[[Report], Iterable[Sequence[object]]]]] = {
    "versions": (
        (
            *("policy", "version", "published_at", "full_bytes", "sent_bytes", "changed_share"),
            *("copy_s", "hash_s", "encode_s", "send_s"),
        ),
        _version_rows,
    ),
    "regions": (tuple(field.name for field in fields(RegionRow)), _region_rows),
    "laggards": ((*(field.name for field in fields(Laggard)), "is_beyond"), _laggard_rows),
    "links": (("node", "region", *(field.name for field in fields(LinkReport))), _link_rows),
}
