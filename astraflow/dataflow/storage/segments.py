"""Segments: append-only files for the payload of accepted results, removed when nothing in them is needed.

A record is one push as received over the wire, so that nothing is encoded again. The journal holds the index (which
records are needed, and where they are), and a record is on disk before the index names it: a record torn by a crash is
never read. The records of a commit form a block of whole pages, which is written past the page cache where the file
system supports it: new files written and synchronised through the cache took 15 to 90 µs of CPU for each 32 KiB here,
and 1 to 6 µs past it, at two to four times the rate.

    open segment ──full──► sealed ──nothing needed──► spare ──► the next open segment, or removed if surplus
                             └──little needed──► its records move to the open segment

A segment in use holds at least `MIN_NEEDED_SHARE` of its size in needed records, so the files stay within a few times
the needed size, however long single groups take. Spares are overwritten: some file systems discard the space of a
deleted file at once, and every write waits for that (1.2 ms for each MiB here, against 0.1 ms for a commit).
"""

import errno
import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from astraflow.contract.errors import CorruptData

SEGMENT_BYTES = 64 * 2**20
"""Size at which a segment is sealed."""

MIN_NEEDED_SHARE = 0.25
"""Share of needed bytes below which a sealed segment is compacted."""

PAGE_BYTES = 4096
"""Alignment of blocks, in the file and in memory, as direct I/O requires."""

MAX_SPARE_SEGMENTS = 2
"""Number of spare segments that are kept to be overwritten. Further segments are truncated step by step."""

SHRINK_BYTES = 4 * 2**20
"""Size by which a surplus spare is truncated with each commit."""

_BUFFER_BYTES = 8 * 2**20

_SPARE = ".spare"
_HEADER = struct.Struct("<IQ")
"""Header of a record: its length and the xxh3 hash of its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLocation:
    """Location of a record."""

    segment: int
    offset: int
    """Position of the header in the segment. Bytes."""
    length: int
    """Length of the record without its header. Bytes."""

    @property
    def size_bytes(self) -> int:
        return _HEADER.size + self.length


@dataclass(slots=True)
class _Segment:
    size_bytes: int = 0
    needed_records: dict[int, RecordLocation] = field(default_factory=dict)
    """Locations of the needed records, by record number."""

    @property
    def needed_bytes(self) -> int:
        return sum(location.size_bytes for location in self.needed_records.values())


class SegmentMap:
    """Locations of records. It assigns locations before anything is written and touches no file."""

    def __init__(self, locations: Iterable[tuple[int, RecordLocation]] = (), *, first_free: int = 1) -> None:
        self._segments: dict[int, _Segment] = {}
        self._locations: dict[int, RecordLocation] = {}
        self._open = first_free
        for record, location in locations:
            self._put(record, location)

    def location(self, record: int) -> RecordLocation:
        return self._locations[record]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments.values())

    def append(self, records: Sequence[tuple[int, int]]) -> list[RecordLocation]:
        """Assigns locations to records of these numbers and lengths, in sequence in a new block of the open segment."""
        locations = []
        offset = -(-self._end() // PAGE_BYTES) * PAGE_BYTES
        for record, length in records:
            if offset >= SEGMENT_BYTES:
                self._open, offset = self._open + 1, 0
            locations.append(RecordLocation(segment=self._open, offset=offset, length=length))
            self._put(record, locations[-1])
            offset = self._end()
        return locations

    def drop(self, record: int) -> None:
        """Drops a record that is no longer needed."""
        location = self._locations.pop(record)
        del self._segments[location.segment].needed_records[record]

    def take_unneeded_segments(self) -> list[int]:
        """Removes the sealed segments without needed records; returns their numbers."""
        unneeded = [number for number, segment in self._sealed() if not segment.needed_records]
        for number in unneeded:
            del self._segments[number]
        return unneeded

    def records_to_compact(self) -> list[int]:
        """Returns the needed records of one sealed segment below `MIN_NEEDED_SHARE`; empty without such a segment."""
        for _, segment in self._sealed():
            if segment.needed_records and segment.needed_bytes < MIN_NEEDED_SHARE * segment.size_bytes:
                return list(segment.needed_records)
        return []

    def _end(self) -> int:
        return self._segments[self._open].size_bytes if self._open in self._segments else 0

    def _sealed(self) -> Iterator[tuple[int, _Segment]]:
        return ((number, segment) for number, segment in self._segments.items() if number != self._open)

    def _put(self, record: int, location: RecordLocation) -> None:
        segment = self._segments.setdefault(location.segment, _Segment())
        segment.needed_records[record] = location
        segment.size_bytes = max(segment.size_bytes, location.offset + location.size_bytes)
        self._locations[record] = location


class SegmentFiles:
    """Files of the segments. One caller at a time; all methods block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: tuple[int, int] | None = None
        """Number and file descriptor of the open segment."""
        self._buffer = mmap.mmap(-1, _BUFFER_BYTES)  # starts at a page boundary

    def segment_numbers(self) -> list[int]:
        """Returns the numbers of the existing segments."""
        return sorted(int(path.stem) for path in self._directory.glob("*.segment") if path.stem.isdecimal())

    def write(self, records: Iterable[tuple[RecordLocation, bytes]]) -> None:
        """Writes records to their locations and synchronises the files. Raises: OSError."""
        for block in _blocks(records):
            self._write_block(self._descriptor(block[0][0].segment), block)
        if self._open is not None:
            os.fdatasync(self._open[1])

    def read(self, location: RecordLocation) -> bytes:
        """Returns a record. Raises: CorruptData when its bytes differ from what was written."""
        path = self._path(location.segment)
        try:
            with path.open("rb") as file:
                file.seek(location.offset)
                length, digest = _HEADER.unpack(file.read(_HEADER.size))
                body = file.read(length)
        except (OSError, struct.error) as problem:
            raise CorruptData(
                f"cannot read {str(path)!r} at offset {location.offset}: {problem}; check the disk",
                code="journal.unreadable",
            ) from problem
        if len(body) != location.length or xxhash.xxh3_64_intdigest(body) != digest:
            raise CorruptData(
                f"cannot read {str(path)!r} at offset {location.offset}: the record is damaged; check the disk",
                code="journal.damaged",
            )
        return body

    def remove(self, numbers: Iterable[int]) -> None:
        """Turns these segments into spares, ignoring missing segments, and truncates one surplus spare."""
        for number in numbers:
            with suppress(FileNotFoundError):
                self._path(number).rename(self._directory / f"{number:08d}{_SPARE}")
        for spare in self._spares()[MAX_SPARE_SEGMENTS:][:1]:
            _shrink(spare)

    def close(self) -> None:
        """Closes the open segment and removes the spares."""
        self._close_open()
        for spare in self._spares():
            spare.unlink()

    def _close_open(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def _spares(self) -> list[Path]:
        return sorted(self._directory.glob(f"*{_SPARE}"), key=lambda path: (-path.stat().st_size, path))

    def _write_block(self, descriptor: int, records: Sequence[tuple[RecordLocation, bytes]]) -> None:
        """Writes the records of one block through the buffer, in whole pages."""
        offset = records[0][0].offset // PAGE_BYTES * PAGE_BYTES
        filled = records[0][0].offset - offset
        for location, body in records:
            for part in (_HEADER.pack(location.length, xxhash.xxh3_64_intdigest(body)), body):
                rest = memoryview(part)
                while rest:
                    chunk = rest[: _BUFFER_BYTES - filled]
                    self._buffer[filled : filled + len(chunk)] = chunk
                    filled += len(chunk)
                    rest = rest[len(chunk) :]
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
            if not self._path(number).exists():  # a commit that is tried again returns to an earlier segment
                for spare in self._spares()[:1]:
                    spare.rename(self._path(number))
            self._open = (number, _opened(self._path(number)))
            _sync_directory(self._directory)
        return self._open[1]

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:08d}.segment"


def _blocks(records: Iterable[tuple[RecordLocation, bytes]]) -> Iterator[list[tuple[RecordLocation, bytes]]]:
    """Yields the records of each block. Commits that failed are tried again as one, so there may be several blocks."""
    block: list[tuple[RecordLocation, bytes]] = []
    end: tuple[int, int] | None = None
    for location, body in records:
        if block and (location.segment, location.offset) != end:
            yield block
            block = []
        block.append((location, body))
        end = (location.segment, location.offset + location.size_bytes)
    if block:
        yield block


def _shrink(path: Path) -> None:
    remaining_bytes = path.stat().st_size - SHRINK_BYTES
    if remaining_bytes > 0:
        os.truncate(path, remaining_bytes)
    else:
        path.unlink()


def _opened(path: Path) -> int:
    """Opens a file for direct I/O, or through the page cache on file systems without it (those in memory)."""
    try:
        return os.open(path, os.O_CREAT | os.O_WRONLY | getattr(os, "O_DIRECT", 0), 0o600)
    except OSError as problem:
        if problem.errno != errno.EINVAL:
            raise
        return os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)


def _write_all(descriptor: int, view: memoryview, offset: int) -> None:
    """Writes all bytes; a single write may be partial, for example when the disk is nearly full."""
    while view:
        written = os.pwrite(descriptor, view, offset)
        offset += written
        view = view[written:]


def _sync_directory(directory: Path) -> None:
    """Synchronises a directory: without it a new file may be missing after a crash."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
