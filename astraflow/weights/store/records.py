"""Record of a version in the store: its manifest and its files. A version without a record does not exist.

A record file is, little-endian:

    magic "AFRECORD" | notice bytes u32 | plan bytes u32 | BLAKE3 of the rest 32 | notice | plan

where notice and plan are the weight plane's `VersionNotice` and `PlanReply` messages; the plan's transfers are the
version's files.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from blake3 import blake3
from google.protobuf.message import DecodeError

from astraflow.contract.errors import CorruptData, InvalidInput, UnknownVersion
from astraflow.contract.ids import Version
from astraflow.contract.weights import Manifest, Transfer, TransferKind, TransferPlan, VersionNotice
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.codecs.weights import decode_plan, encode_plan
from astraflow.wire.pb import weight_plane_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSegment:
    """Transfer that may be part of a route: a full snapshot of `target`, or the delta from `base` to it."""

    target: Version
    base: Version | None
    """Version that the delta starts from; None for a full snapshot."""
    size_bytes: int


def cheapest_route(
    segments: Iterable[RouteSegment], *, have: Version | None, want: Version
) -> tuple[RouteSegment, ...]:
    """Returns the segments from `have` (None: nothing) to `want` with the fewest bytes, then the fewest segments.

    Every segment leads from an older version to a newer one, so one pass in order of their targets is enough.
    Raises: UnknownVersion when there is no route.

    >>> full = RouteSegment(target=Version(5), base=None, size_bytes=90)
    >>> delta = RouteSegment(target=Version(5), base=Version(4), size_bytes=7)
    >>> [segment.size_bytes for segment in cheapest_route([full, delta], have=Version(4), want=Version(5))]
    [7]
    """
    routes: dict[Version | None, tuple[RouteSegment, ...]] = {None: ()}
    if have is not None:
        routes[have] = ()
    for segment in sorted(segments, key=lambda segment: segment.target):
        if segment.base not in routes or segment.target == have:
            continue
        route = (*routes[segment.base], segment)
        if segment.target not in routes or _cost(route) < _cost(routes[segment.target]):
            routes[segment.target] = route
    if want not in routes:
        raise UnknownVersion(
            f"cannot reach version {want} from {_describe_start(have)}: the store does not have it; request the newest "
            "version",
            code="weights.version_not_stored",
        )
    return routes[want]


def _cost(route: tuple[RouteSegment, ...]) -> tuple[int, int]:
    return sum(segment.size_bytes for segment in route), len(route)


def _describe_start(have: Version | None) -> str:
    return "nothing" if have is None else f"version {have}"


_HEAD = struct.Struct("<8sII32s")
_MAGIC = b"AFRECORD"
RECORD_SUFFIX = ".record"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One version in the store. `files`: at most one full snapshot and one delta."""

    manifest: Manifest
    files: tuple[Transfer, ...]
    published_at: float
    changed_elements: int = 0
    """Elements that differ from the previous version; 0 when unknown."""

    @property
    def version(self) -> Version:
        return self.manifest.version

    @property
    def full(self) -> Transfer | None:
        """Full snapshot on disk, which makes the version an anchor; None without one."""
        return next((file for file in self.files if file.kind is TransferKind.FULL), None)

    @property
    def delta(self) -> Transfer | None:
        """Delta that leads to the version; None without one."""
        return next((file for file in self.files if file.kind is TransferKind.DELTA), None)

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of its files. Bytes."""
        return sum(file.size_bytes for file in self.files)

    def file(self, base: Version | None) -> Transfer:
        """Returns the file that leads to this version from `base`; None is the full snapshot."""
        return next(file for file in self.files if file.base == base)

    @property
    def notice(self) -> VersionNotice:
        """Notice of this version for watchers."""
        return VersionNotice(
            policy=self.manifest.policy,
            version=self.version,
            root_hash=self.manifest.root_hash,
            full_bytes=self.manifest.size_bytes,
            delta_bytes=self.delta.size_bytes if self.delta else 0,
            published_at=self.published_at,
            changed_elements=self.changed_elements,
            elements=sum(tensor.elements for tensor in self.manifest.tensors),
        )

    @property
    def segments(self) -> list[RouteSegment]:
        """Route segments that lead to this version."""
        return [RouteSegment(target=file.target, base=file.base, size_bytes=file.size_bytes) for file in self.files]


def record_name(version: Version) -> str:
    return f"{version:010d}{RECORD_SUFFIX}"


def file_name(file: Transfer) -> str:
    """Returns the file name of a version's snapshot or delta."""
    return f"{file.target:010d}.{file.kind.value}"


def encode_record(record: Record) -> bytes:
    notice = to_message(record.notice, pb.VersionNotice).SerializeToString()
    plan = encode_plan(TransferPlan(manifest=record.manifest, transfers=record.files)).SerializeToString()
    return _HEAD.pack(_MAGIC, len(notice), len(plan), blake3(notice + plan).digest()) + notice + plan


def decode_record(data: bytes) -> Record:
    """Decodes a record file. Raises: CorruptData when it is torn or damaged."""
    if len(data) < _HEAD.size:
        raise CorruptData("the record ends inside its head", code="weights.damaged_record")
    magic, notice_bytes, plan_bytes, digest = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if magic != _MAGIC or len(body) != notice_bytes + plan_bytes or blake3(body).digest() != digest:
        raise CorruptData("the record does not match its checksum", code="weights.damaged_record")
    try:
        plan = decode_plan(pb.PlanReply.FromString(body[notice_bytes:]))
        notice = from_message(pb.VersionNotice.FromString(body[:notice_bytes]), VersionNotice)
    except (DecodeError, InvalidInput) as problem:
        raise CorruptData(f"the record cannot be decoded: {problem}", code="weights.damaged_record") from problem
    return Record(
        manifest=plan.manifest,
        files=plan.transfers,
        published_at=notice.published_at,
        changed_elements=notice.changed_elements,
    )
