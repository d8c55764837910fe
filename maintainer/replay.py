"""Asks today's guard again about every plan of a transcript: the same inputs have to give the same verdicts."""

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.maintenance import TranscriptEntry
from maintainer.fleet.evidence import Evidence
from maintainer.fleet.guard import verdict
from maintainer.transcript import Kind, read


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A plan that the guard judges otherwise now."""

    ordinal: int
    """Of the entry."""
    plan: str
    pool: str
    recorded: tuple[str, ...]
    """A line for the verdict, then one for each finding."""
    now: tuple[str, ...]

    def text(self) -> str:
        """As people read differences."""
        label = f"entry {self.ordinal}, plan {self.plan} of pool {self.pool}"
        lines = difflib.unified_diff(self.recorded, self.now, f"{label}, recorded", f"{label}, now", lineterm="")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came of a file."""

    entries: int
    verdicts: int
    differences: tuple[Difference, ...]
    torn_bytes: int


def replayed(path: Path) -> Replayed:
    """Judge everything in a file again. Raises: InvalidInput, CorruptData for a file that is not as it was written."""
    readout = read(path)
    verdicts = [entry for entry in readout.entries if entry.kind == Kind.VERDICT.value]
    return Replayed(
        entries=len(readout.entries),
        verdicts=len(verdicts),
        differences=tuple(differences(verdicts)),
        torn_bytes=len(readout.torn),
    )


def differences(entries: Iterable[TranscriptEntry]) -> Iterable[Difference]:
    """Of entries with verdicts, those that come out otherwise now. Raises: CorruptData."""
    for entry in entries:
        try:
            body = entry.body
            evidence = Evidence.parse(json.dumps(body["guard"]))
            recorded = _lines(str(body["verdict"]), [[str(part) for part in one] for one in body["findings"]])  # type: ignore[union-attr]  # checked below
        except (KeyError, TypeError, InvalidInput) as problem:
            raise CorruptData(f"entry {entry.ordinal} holds no verdict that can be judged again: {problem}") from None
        found = evidence.findings()
        now = _lines(verdict(found).value, [[one.code, one.verdict.value, one.message] for one in found])
        if now != recorded:
            plan, pool = str(body.get("plan")), str(body.get("pool"))
            yield Difference(ordinal=entry.ordinal, plan=plan, pool=pool, recorded=recorded, now=now)


def _lines(said: str, findings: list[list[str]]) -> tuple[str, ...]:
    return (said, *(": ".join(finding) for finding in findings))
