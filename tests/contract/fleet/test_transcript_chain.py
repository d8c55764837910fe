"""Verification of a stretch of a transcript names the first entry where the chain breaks."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.fleet.maintainer import TranscriptEntry
from astraflow.contract.fleet.transcript_chain import GENESIS_HASH, digest, first_broken_entry


def chain(length: int) -> list[TranscriptEntry]:
    entries, previous = [], GENESIS_HASH
    for number in range(length):
        body = {"number": number}
        hash_ = digest(number, float(number), "w-1", "tool", body, previous)
        entries.append(
            TranscriptEntry(
                ordinal=number, at=float(number), wake="w-1", kind="tool", body=body, previous=previous, hash=hash_
            )
        )
        previous = hash_
    return entries


@given(st.integers(0, 8), st.integers(0, 8))
def test_any_range_of_the_chain_is_valid(begin: int, end: int) -> None:
    assert first_broken_entry(chain(9)[begin : end + 1]) is None


@given(st.integers(0, 8), st.sampled_from(["at", "wake", "kind", "body", "previous", "hash", "ordinal"]))
def test_a_changed_entry_is_found(index: int, name: str) -> None:
    entries = chain(9)
    other: dict[str, Any] = {"at": 99.5, "body": {"number": -1}, "previous": "f" * 64, "hash": "e" * 64, "ordinal": 44}
    entries[index] = replace(entries[index], **{name: other.get(name, "other")})
    assert first_broken_entry(entries) == entries[index].ordinal


@given(st.integers(1, 7))
def test_a_missing_entry_is_found(index: int) -> None:
    entries = chain(9)
    del entries[index]
    assert first_broken_entry(entries) == index + 1
