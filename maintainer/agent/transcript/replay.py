"""Judges every plan of a transcript again with today's guard: equal inputs must give equal verdicts."""

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.fleet.maintainer import TranscriptEntry
from maintainer.agent.transcript.transcript import Kind, read
from maintainer.fleet.guard.rules import verdict
from maintainer.fleet.guard.run_changes import parse_inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Plan whose verdict or findings changed."""

    ordinal: int
    """Ordinal of the entry."""
    plan: str
    pool: str
    recorded: tuple[str, ...]
    """Verdict, then one line per finding."""
    now: tuple[str, ...]

    def text(self) -> str:
        """Unified diff of the recorded and the current verdict."""
        label = f"entry {self.ordinal}, plan {self.plan} of pool {self.pool}"
        lines = difflib.unified_diff(self.recorded, self.now, f"{label}, recorded", f"{label}, now", lineterm="")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Result of a replay."""

    entries: int
    verdicts: int
    differences: tuple[Difference, ...]
    torn_bytes: int


def replay_transcript(path: Path) -> ReplayResult:
    """Judges all plans of a file again. Raises: InvalidInput; CorruptData if the file was changed."""
    readout = read(path)
    verdicts = [entry for entry in readout.entries if entry.kind == Kind.VERDICT.value]
    return ReplayResult(
        entries=len(readout.entries),
        verdicts=len(verdicts),
        differences=tuple(differences(verdicts)),
        torn_bytes=len(readout.torn),
    )


def differences(entries: Iterable[TranscriptEntry]) -> Iterable[Difference]:
    """Yields the entries whose verdict changed. Raises: CorruptData."""
    for entry in entries:
        try:
            body = entry.body
            evidence = parse_inputs(json.dumps(body["guard"]))
            recorded = _lines(str(body["verdict"]), [[str(part) for part in finding] for finding in body["findings"]])  # type: ignore[union-attr]  # checked below
        except (KeyError, TypeError, InvalidInput) as problem:
            raise CorruptData(
                f"cannot replay entry {entry.ordinal}: incomplete verdict ({problem}); use an unchanged transcript",
                code="transcript.invalid_verdict",
            ) from None
        findings = evidence.violations()
        now = _lines(
            verdict(findings).value,
            [[finding.code.value, finding.verdict.value, finding.message] for finding in findings],
        )
        if now != recorded:
            plan, pool = str(body.get("plan")), str(body.get("pool"))
            yield Difference(ordinal=entry.ordinal, plan=plan, pool=pool, recorded=recorded, now=now)


def _lines(verdict_line: str, findings: list[list[str]]) -> tuple[str, ...]:
    return (verdict_line, *(": ".join(finding) for finding in findings))
