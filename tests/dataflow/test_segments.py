"""Payload segments on disk: needed records are complete, others are removed, and damage is reported."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.contract.errors import CorruptData
from astraflow.dataflow.storage import segments
from astraflow.dataflow.storage.segments import MIN_NEEDED_SHARE, PAGE_BYTES, RecordLocation, SegmentFiles, SegmentMap


def test_a_block_starts_at_a_page_and_has_adjacent_records() -> None:
    segment_map = SegmentMap()
    segment_map.append([(1, 100), (2, 200)])
    (third,) = segment_map.append([(3, 10)])
    assert [segment_map.location(number).offset for number in (1, 2)] == [0, segment_map.location(1).size_bytes]
    assert third.offset == PAGE_BYTES


def test_a_full_segment_is_removed_when_no_record_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 2 * PAGE_BYTES)
    segment_map = SegmentMap()
    for number in range(3):
        segment_map.append([(number, PAGE_BYTES // 2)])
    assert [segment_map.location(number).segment for number in range(3)] == [1, 1, 2]
    segment_map.drop(0)
    assert segment_map.take_unneeded_segments() == []
    segment_map.drop(1)
    assert segment_map.take_unneeded_segments() == [1]
    assert segment_map.take_unneeded_segments() == []


def test_the_open_segment_is_never_removed_or_compacted() -> None:
    segment_map = SegmentMap()
    segment_map.append([(1, 10)])
    segment_map.drop(1)
    assert segment_map.take_unneeded_segments() == []
    assert segment_map.records_to_compact() == []


def test_remaining_records_of_a_mostly_unneeded_segment_are_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 8 * PAGE_BYTES)
    segment_map = SegmentMap()
    segment_map.append([(number, PAGE_BYTES) for number in range(12)])
    for number in range(7):
        assert segment_map.records_to_compact() == []
        segment_map.drop(number)
    assert segment_map.records_to_compact() == [7]


@pytest.mark.parametrize("sizes", [[0], [1, 2, 3], [PAGE_BYTES - 12], [5_000_000, 17, 9_000_000]])
def test_records_round_trip(tmp_path: Path, sizes: list[int]) -> None:
    """Covers records larger than the write buffer."""
    files, segment_map = SegmentFiles(tmp_path), SegmentMap()
    bodies = {number: bytes([number + 1]) * size for number, size in enumerate(sizes)}
    for _ in range(2):
        placed = segment_map.append([(number, len(body)) for number, body in bodies.items()])
        files.write(zip(placed, bodies.values(), strict=True))
        assert {number: files.read(location) for number, location in zip(bodies, placed, strict=True)} == bodies
        for number in bodies:
            segment_map.drop(number)
    files.close()


@pytest.mark.parametrize("offset", [0, 5, 12, 100])
def test_a_damaged_record_is_refused(tmp_path: Path, offset: int) -> None:
    files, segment_map = SegmentFiles(tmp_path), SegmentMap()
    (location,) = segment_map.append([(1, 100)])
    files.write([(location, b"x" * 100)])
    files.close()
    (path,) = tmp_path.iterdir()
    body = bytearray(path.read_bytes())
    body[offset] ^= 1
    path.write_bytes(body)
    with pytest.raises(CorruptData) as caught:
        files.read(location)
    assert caught.value.code == "journal.damaged"


def test_truncated_and_missing_segments_are_refused(tmp_path: Path) -> None:
    files, segment_map = SegmentFiles(tmp_path), SegmentMap()
    (location,) = segment_map.append([(1, 10_000)])
    files.write([(location, b"x" * 10_000)])
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(CorruptData) as caught:
        files.read(location)
    assert caught.value.code == "journal.damaged"
    files.remove([1, 2])
    files.close()
    with pytest.raises(CorruptData) as caught:
        files.read(location)
    assert caught.value.code == "journal.unreadable"


def test_an_unneeded_segment_file_is_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never reads the segment's earlier content as its new one."""
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 2 * PAGE_BYTES)
    files, segment_map = SegmentFiles(tmp_path), SegmentMap()
    inodes = set[int]()
    for number in range(20):
        (location,) = segment_map.append([(number, 2 * PAGE_BYTES)])
        files.write([(location, bytes([number]) * 2 * PAGE_BYTES)])
        inodes.add((tmp_path / f"{location.segment:08d}.segment").stat().st_ino)
        assert files.read(location) == bytes([number]) * 2 * PAGE_BYTES
        segment_map.drop(number)
        files.remove(segment_map.take_unneeded_segments())
    assert len(inodes) <= 3
    (location,) = segment_map.append([(100, 10)])
    files.write([(location, b"0123456789")])
    unwritten = RecordLocation(segment=location.segment, offset=PAGE_BYTES, length=100)
    with pytest.raises(CorruptData) as caught:
        files.read(unwritten)
    assert caught.value.code == "journal.damaged"
    files.close()
    assert not list(tmp_path.glob("*.spare"))


def test_spare_segments_are_truncated_gradually(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 4 * PAGE_BYTES)
    monkeypatch.setattr(segments, "SHRINK_BYTES", 2 * PAGE_BYTES)
    files, segment_map = SegmentFiles(tmp_path), SegmentMap()
    placed = segment_map.append([(number, 4 * PAGE_BYTES - 12) for number in range(6)])
    files.write((location, b"x" * location.length) for location in placed)
    assert len({location.segment for location in placed}) == 6
    sizes = list[int]()
    files.remove(range(1, 6))
    while not sizes or sizes[-1] > segments.MAX_SPARE_SEGMENTS * 4 * PAGE_BYTES:
        sizes.append(sum(path.stat().st_size for path in tmp_path.glob("*.spare")))
        files.remove([])
    assert [before - after for before, after in pairwise(sizes)] == [2 * PAGE_BYTES] * 5
    assert files.read(placed[5]) == b"x" * placed[5].length
    files.close()


def test_a_file_system_without_direct_writes_uses_buffered_writes(tmp_path: Path) -> None:
    """Uses /dev/shm, which does not support direct writes."""
    shared = Path("/dev/shm") / f"astraflow-{tmp_path.name}"  # noqa: S108 (its own folder, removed below)
    files, segment_map = SegmentFiles(shared), SegmentMap()
    (location,) = segment_map.append([(1, 5)])
    try:
        files.write([(location, b"hello")])
        assert files.read(location) == b"hello"
    finally:
        files.remove(files.segment_numbers())
        files.close()
        shared.rmdir()


@pytest.mark.long
@settings(max_examples=60)
@given(data=st.data())
def test_files_stay_within_a_few_times_the_needed_size(data: st.DataObject) -> None:
    """Drops records in any order while nearly unused segments are emptied."""
    segment_map, needed, last = SegmentMap(), set[int](), 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(segments, "SEGMENT_BYTES", 16 * PAGE_BYTES)
        for _ in range(data.draw(st.integers(1, 60))):
            count = data.draw(st.integers(0, 8))
            numbers = range(last, last := last + count)
            segment_map.append([(number, data.draw(st.integers(0, 3 * PAGE_BYTES))) for number in numbers])
            needed |= set(numbers)
            for number in data.draw(st.lists(st.sampled_from(sorted(needed)), unique=True)) if needed else ():
                segment_map.drop(number)
                needed.discard(number)
            while scattered := segment_map.records_to_compact():
                lengths = [(number, segment_map.location(number).length) for number in scattered]
                for number in scattered:
                    segment_map.drop(number)
                segment_map.append(lengths)
            segment_map.take_unneeded_segments()
            spread = {number: segment_map.location(number) for number in needed}
            assert not overlapping(list(spread.values()))
            used = sum(location.size_bytes for location in spread.values())
            assert segment_map.size_bytes <= used / MIN_NEEDED_SHARE + 20 * PAGE_BYTES


def overlapping(segment_map: list[RecordLocation]) -> bool:
    ordered = sorted((location.segment, location.offset, location.size_bytes) for location in segment_map)
    return any(a[0] == b[0] and a[1] + a[2] > b[1] for a, b in pairwise(ordered))
