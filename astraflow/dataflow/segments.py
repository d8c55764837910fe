"""Where the payload of accepted results is on disk: append-only files, removed when nothing in them is needed.

A record is what one push brought, as it came over the wire, so that nothing is encoded again. The index (which records
are needed, and where they are) is the journal's, and a record is on disk before the index names it: what a crash tears
is never looked at. The records of a commit stand together in a block of whole pages, which goes to the disk past the
page cache where the file system can: new files written and synchronised through the cache took 15 to 90 µs of CPU for
each 32 KiB here, and 1 to 6 µs past it, at two to four times the rate.

    open segment ──full──► sealed ──nothing needed──► spare ──► the next open segment, or removed when there are others
                             └──little needed──► its records move to the open one

A segment in use holds at least `LEAST_NEEDED` of its size in needed records, so the files stay within a few times what
is needed, however long single groups take. Spares are written over: some file systems give space back to the disk when
a file goes, and every write waits for that (1.2 ms for each MiB here, against 0.1 ms for a commit).
"""

import errno
import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import xxhash

from astraflow.contract.errors import CorruptData

SEGMENT_BYTES = 64 * 2**20
"""A segment is sealed when it has at least this size."""

LEAST_NEEDED = 0.25
"""A sealed segment of which less is needed is emptied."""

PAGE_BYTES = 4096
"""A block begins and ends at a multiple of this, in the file and in memory, as disks want it."""

SPARES = 2
"""Segments that are kept to be written over. Others are cut away, little by little."""

CUT_BYTES = 4 * 2**20
"""Of a segment too many, with each commit."""

_BUFFER_BYTES = 8 * 2**20

_SPARE = ".spare"
_HEAD = struct.Struct("<IQ")
"""Length of the record and the xxh3 hash of its bytes, before each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a record is."""

    segment: int
    offset: int
    """Of its head."""
    length: int
    """Of the record alone."""

    @property
    def size_bytes(self) -> int:
        """With its head."""
        return _HEAD.size + self.length


@dataclass(slots=True)
class _Segment:
    size_bytes: int = 0
    needed: dict[int, Place] = field(default_factory=dict)
    """Records by their number."""

    @property
    def needed_bytes(self) -> int:
        return sum(place.size_bytes for place in self.needed.values())


class SegmentMap:
    """Which records are where. Places are given out before anything is written; it touches no file."""

    def __init__(self, places: Iterable[tuple[int, Place]] = (), *, first_free: int = 1) -> None:
        self._segments: dict[int, _Segment] = {}
        self._places: dict[int, Place] = {}
        self._open = first_free
        for record, place in places:
            self._put(record, place)

    def place(self, record: int) -> Place:
        """Of a record."""
        return self._places[record]

    @property
    def size_bytes(self) -> int:
        """Of all segments."""
        return sum(segment.size_bytes for segment in self._segments.values())

    def append(self, records: Sequence[tuple[int, int]]) -> list[Place]:
        """Places for records of these numbers and lengths, one after the other in a new block of the open segment."""
        places = []
        begin = -(-self._end() // PAGE_BYTES) * PAGE_BYTES
        for record, length in records:
            if begin >= SEGMENT_BYTES:
                self._open, begin = self._open + 1, 0
            places.append(Place(segment=self._open, offset=begin, length=length))
            self._put(record, places[-1])
            begin = self._end()
        return places

    def drop(self, record: int) -> None:
        """A record is needed no more."""
        place = self._places.pop(record)
        del self._segments[place.segment].needed[record]

    def take_useless(self) -> list[int]:
        """Forget the sealed segments of which nothing is needed; returns their numbers."""
        useless = [number for number, segment in self._sealed() if not segment.needed]
        for number in useless:
            del self._segments[number]
        return useless

    def scattered(self) -> list[int]:
        """The needed records of one sealed segment that holds little of them; empty when there is no such segment."""
        for _, segment in self._sealed():
            if segment.needed and segment.needed_bytes < LEAST_NEEDED * segment.size_bytes:
                return list(segment.needed)
        return []

    def _end(self) -> int:
        return self._segments[self._open].size_bytes if self._open in self._segments else 0

    def _sealed(self) -> Iterator[tuple[int, _Segment]]:
        return ((number, segment) for number, segment in self._segments.items() if number != self._open)

    def _put(self, record: int, place: Place) -> None:
        segment = self._segments.setdefault(place.segment, _Segment())
        segment.needed[record] = place
        segment.size_bytes = max(segment.size_bytes, place.offset + place.size_bytes)
        self._places[record] = place


class SegmentFiles:
    """The files. One caller at a time; everything here blocks."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: tuple[int, int] | None = None
        """Number and file descriptor of the segment written last."""
        self._buffer = mmap.mmap(-1, _BUFFER_BYTES)  # begins at a page

    def numbers(self) -> list[int]:
        """Of the segments that exist."""
        return sorted(int(path.stem) for path in self._directory.glob("*.segment") if path.stem.isdecimal())

    def write(self, records: Iterable[tuple[Place, bytes]]) -> None:
        """Write records to their places, and have them on disk. Raises: OSError."""
        for segment, same in groupby(records, key=lambda record: record[0].segment):
            self._write_block(self._descriptor(segment), list(same))
        if self._open is not None:
            os.fdatasync(self._open[1])

    def read(self, place: Place) -> bytes:
        """A record. Raises: CorruptData when it is not what was written."""
        path = self._path(place.segment)
        try:
            with path.open("rb") as file:
                file.seek(place.offset)
                length, digest = _HEAD.unpack(file.read(_HEAD.size))
                body = file.read(length)
        except (OSError, struct.error) as problem:
            raise CorruptData(f"{path} cannot be read at {place.offset}: {problem}") from problem
        if len(body) != place.length or xxhash.xxh3_64_intdigest(body) != digest:
            raise CorruptData(f"{path} is damaged at {place.offset}: restore it from a copy, or begin a new run")
        return body

    def remove(self, numbers: Iterable[int]) -> None:
        """Make spares of these segments, one that is gone already is no mistake; and cut a little off one too many."""
        for number in numbers:
            with suppress(FileNotFoundError):
                self._path(number).rename(self._directory / f"{number:08d}{_SPARE}")
        for spare in self._spares()[SPARES:][:1]:
            _cut(spare)

    def close(self) -> None:
        """Close what is open, and remove the spares."""
        self._close_open()
        for spare in self._spares():
            spare.unlink()

    def _close_open(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def _spares(self) -> list[Path]:
        """The smallest last."""
        return sorted(self._directory.glob(f"*{_SPARE}"), key=lambda path: (-path.stat().st_size, path))

    def _write_block(self, descriptor: int, records: Sequence[tuple[Place, bytes]]) -> None:
        """Records that stand together: through the buffer, whole pages at a time."""
        offset = records[0][0].offset // PAGE_BYTES * PAGE_BYTES
        filled = records[0][0].offset - offset
        for place, body in records:
            for part in (_HEAD.pack(place.length, xxhash.xxh3_64_intdigest(body)), body):
                rest = memoryview(part)
                while rest:
                    taken = rest[: _BUFFER_BYTES - filled]
                    self._buffer[filled : filled + len(taken)] = taken
                    filled += len(taken)
                    rest = rest[len(taken) :]
                    if filled == _BUFFER_BYTES:
                        _write_all(descriptor, memoryview(self._buffer), offset)
                        offset, filled = offset + filled, 0
        pages = -(-filled // PAGE_BYTES) * PAGE_BYTES
        self._buffer[filled:pages] = bytes(pages - filled)
        _write_all(descriptor, memoryview(self._buffer)[:pages], offset)

    def _descriptor(self, number: int) -> int:
        if self._open is None or self._open[0] != number:
            if self._open is not None:
                os.fdatasync(self._open[1])
            self._close_open()
            self._directory.mkdir(parents=True, exist_ok=True)
            for spare in self._spares()[:1]:
                spare.rename(self._path(number))
            self._open = (number, _opened(self._path(number)))
            _sync_directory(self._directory)
        return self._open[1]

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:08d}.segment"


def _cut(path: Path) -> None:
    left = path.stat().st_size - CUT_BYTES
    if left > 0:
        os.truncate(path, left)
    else:
        path.unlink()


def _opened(path: Path) -> int:
    """For writing past the page cache, or through it on file systems that know nothing else (those in memory)."""
    try:
        return os.open(path, os.O_CREAT | os.O_WRONLY | getattr(os, "O_DIRECT", 0), 0o600)
    except OSError as problem:
        if problem.errno != errno.EINVAL:
            raise
        return os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)


def _write_all(descriptor: int, view: memoryview, offset: int) -> None:
    """A write may end early, when the disk is nearly full for one."""
    while view:
        written = os.pwrite(descriptor, view, offset)
        offset += written
        view = view[written:]


def _sync_directory(directory: Path) -> None:
    """A new file is there after a crash only when its directory is on disk too."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
