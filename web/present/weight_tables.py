"""Tables of the weights as data: who lags, what came into each region, versions, links. Pages and files read them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Literal

from astraflow.contract.links import LinkReport
from astraflow.contract.reports import Report
from web.present.cells import visible_nodes
from web.reading.exports import Sheet

TableName = Literal["versions", "regions", "laggards", "links"]
"""What can be taken away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Laggard:
    """A node that serves an older version than the newest."""

    node: str
    region: str
    policy: str
    serves: str
    newest: str
    behind: int
    bound: int
    state: str

    @property
    def is_beyond(self) -> bool:
        """Whether what it begins now may be too stale to train on."""
        return self.behind > self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRow:
    """All links from one source into one region."""

    region: str
    source: str
    nodes: int
    versions: int
    full_bytes: int
    delta_bytes: int
    shared_bytes: int
    fetch_s: float | None
    """Mean of all versions."""
    slowest_s: float | None
    """The latest version took at most."""
    bytes_per_s: float | None
    breaks: int
    """Of the link: got over, or another source was taken."""


def laggards(report: Report) -> list[Laggard]:
    """Nodes that serve an older version than the newest, those that are furthest behind first."""
    streams = {stream.policy: stream for stream in report.streams}
    found = [
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
        for node in visible_nodes(report)
        for policy, lag in report.lag(node).items()
        if lag
    ]
    return sorted(found, key=lambda one: (one.bound - one.behind, one.node, one.policy))


def region_rows(report: Report) -> list[RegionRow]:
    """What came into each region from each source, and how long a version took."""
    links: dict[tuple[str, str], list[LinkReport]] = {}
    for node in visible_nodes(report):
        for link in node.links:
            links.setdefault((node.facts.region, link.source), []).append(link)
    rows = []
    for (region, source), found in sorted(links.items()):
        versions = sum(link.versions for link in found)
        seconds = sum(link.fetch_s for link in found)
        travelled = sum(link.full_bytes + link.delta_bytes for link in found)
        rows.append(
            RegionRow(
                region=region,
                source=source,
                nodes=len(found),
                versions=versions,
                full_bytes=sum(link.full_bytes for link in found),
                delta_bytes=sum(link.delta_bytes for link in found),
                shared_bytes=sum(link.shared_bytes for link in found),
                fetch_s=seconds / versions if versions else None,
                slowest_s=max(link.latest_fetch_s for link in found) if versions else None,
                bytes_per_s=travelled / seconds if seconds else None,
                breaks=sum(link.resumes + link.failures for link in found),
            )
        )
    return rows


def weight_sheet(report: Report | None, table: TableName) -> Sheet:
    """One of the tables, to take away; sizes in bytes, times in seconds."""
    columns, rows = _SHEETS[table]
    return Sheet(name=f"astraflow-weights-{table}", columns=columns, rows=list(rows(report)) if report else ())


def _version_cells(report: Report) -> Iterator[Sequence[object]]:
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


def _region_cells(report: Report) -> Iterator[Sequence[object]]:
    return (tuple(asdict(row).values()) for row in region_rows(report))


def _laggard_cells(report: Report) -> Iterator[Sequence[object]]:
    return ((*asdict(one).values(), one.is_beyond) for one in laggards(report))


def _link_cells(report: Report) -> Iterator[Sequence[object]]:
    for node in visible_nodes(report):
        for link in node.links:
            yield (node.facts.name, node.facts.region, *asdict(link).values())


_SHEETS: Mapping[str, tuple[Sequence[str], Callable[[Report], Iterable[Sequence[object]]]]] = {
    "versions": (
        (
            *("policy", "version", "published_at", "full_bytes", "sent_bytes", "changed_share"),
            *("copy_s", "hash_s", "encode_s", "send_s"),
        ),
        _version_cells,
    ),
    "regions": (tuple(field.name for field in fields(RegionRow)), _region_cells),
    "laggards": ((*(field.name for field in fields(Laggard)), "is_beyond"), _laggard_cells),
    "links": (("node", "region", *(field.name for field in fields(LinkReport))), _link_cells),
}
