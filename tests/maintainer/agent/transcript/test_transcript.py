"""The transcript reveals every change, and a crash loses at most the line in progress."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astraflow.contract.errors import Conflict, CorruptData, InvalidInput, StorageFull
from astraflow.contract.fleet.transcript_chain import GENESIS_HASH
from maintainer.agent.transcript.transcript import Kind, Transcript, read
from tests.fakes.clock import ManualClock

pytestmark = pytest.mark.anyio

bodies = st.dictionaries(
    st.text(max_size=5),
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    max_size=4,
)


async def written(path: Path, count: int) -> bytes:
    with Transcript(path, ManualClock()) as transcript:
        for number in range(count):
            await transcript.add(Kind.NOTE, {"text": f"note {number}"}, wake="w-1")
    return path.read_bytes()


@pytest.mark.long
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(bodies, max_size=6))
async def test_a_transcript_is_read_as_written(tmp_path: Path, given_bodies: list[dict[str, object]]) -> None:
    path = tmp_path / "t.jsonl"
    path.unlink(missing_ok=True)
    with Transcript(path, ManualClock()) as transcript:
        entries = tuple([await transcript.add(Kind.TOOL, json.loads(json.dumps(body))) for body in given_bodies])
    assert read(path).entries == entries
    assert [entry.previous for entry in entries] == [GENESIS_HASH, *(entry.hash for entry in entries)][: len(entries)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10_000), st.integers(1, 255))
async def test_a_changed_byte_breaks_the_chain(tmp_path: Path, index: int, change: int) -> None:
    path = tmp_path / "t.jsonl"
    path.unlink(missing_ok=True)
    content = bytearray(await written(path, 4))
    index %= len(content)
    content[index] ^= change
    path.write_bytes(content)
    try:
        contents = read(path)
    except CorruptData:
        return
    # Only a change at the end can look like an unfinished line; `torn` reports it.
    assert contents.torn
    assert len(contents.entries) < 4


@pytest.mark.parametrize("work", ["drop", "swap", "double"])
async def test_missing_moved_or_repeated_lines_break_the_chain(tmp_path: Path, work: str) -> None:
    path = tmp_path / "t.jsonl"
    lines = (await written(path, 5)).splitlines(keepends=True)
    if work == "drop":
        del lines[2]
    elif work == "swap":
        lines[1], lines[2] = lines[2], lines[1]
    else:
        lines.insert(2, lines[2])
    path.write_bytes(b"".join(lines))
    with pytest.raises(CorruptData, check=lambda problem: problem.code == "transcript.broken_chain"):
        read(path)


async def test_an_incomplete_last_line_is_cut_off_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    content = await written(path, 3)
    begin = content.rindex(b"\n", 0, -1) + 1
    for end in range(begin + 1, len(content)):
        path.write_bytes(content[:end])
        assert read(path).torn == content[begin:end]
        with Transcript(path, ManualClock()) as transcript:
            assert (len(transcript.known), transcript.torn) == (2, content[begin:end])
            await transcript.add(Kind.INCOMPLETE_LINE, {"size_bytes": len(transcript.torn)})
        assert [entry.kind for entry in read(path).entries] == ["note", "note", "torn"]


async def test_a_transcript_has_one_writer(tmp_path: Path) -> None:
    with (
        Transcript(tmp_path / "t.jsonl", ManualClock()),
        pytest.raises(Conflict, check=lambda problem: problem.code == "transcript.in_use"),
        Transcript(tmp_path / "t.jsonl", ManualClock()),
    ):
        pass


async def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    await written(tmp_path / "t.jsonl", 1)
    assert (tmp_path / "t.jsonl").stat().st_mode & 0o777 == 0o600


async def test_values_outside_json_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with Transcript(path, ManualClock()) as transcript:
        for value in (float("nan"), object()):
            with pytest.raises(InvalidInput, check=lambda problem: problem.code == "transcript.not_json"):
                await transcript.add(Kind.NOTE, {"x": value})  # type: ignore[dict-item]  # invalid on purpose
        await transcript.add(Kind.NOTE, {})
    assert len(read(path).entries) == 1


async def test_a_full_disk_leaves_no_incomplete_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.jsonl"

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with Transcript(path, ManualClock()) as transcript:
        await transcript.add(Kind.NOTE, {})
        with monkeypatch.context() as patched:
            patched.setattr("os.fsync", full)
            with pytest.raises(StorageFull, check=lambda problem: problem.code == "transcript.storage_full"):
                await transcript.add(Kind.NOTE, {"text": "lost"})
        await transcript.add(Kind.NOTE, {"text": "after"})
    assert [entry.body for entry in read(path).entries] == [{}, {"text": "after"}]
