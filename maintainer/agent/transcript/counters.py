"""Counters over a transcript: wakes, plans, outcomes, tokens, dollars."""

from collections import Counter
from collections.abc import Iterable

from astraflow.contract.fleet.maintainer import TranscriptEntry
from maintainer.agent.transcript.transcript import Kind

NAMES = (
    *("wakes", "tool_calls", "plans", "applied", "proposed", "recorded", "refused", "conflict"),
    *("failures", "verified", "missed", "tokens", "usd"),
)


INTERRUPTED = ("stopped", "out_of_time")
"""Failure values of turns that were interrupted rather than failed by the service."""


class Counters:
    """Sums over a transcript."""

    def __init__(self, entries: Iterable[TranscriptEntry]) -> None:
        self._sums: Counter[str] = Counter()
        self.digest_day: int | None = None
        """Day of the latest digest, days since 1970."""
        for entry in entries:
            self.add(entry)

    @property
    def has_any(self) -> bool:
        """True if there was a wake."""
        return self._sums["wakes"] > 0

    def add(self, entry: TranscriptEntry) -> None:
        """Counts one entry."""
        body, sums = entry.body, self._sums
        match entry.kind:
            case Kind.WAKE.value:
                sums["wakes"] += 1
            case Kind.TOOL.value:
                sums["tool_calls"] += 1
            case Kind.VERDICT.value if body.get("phase") == "plan":
                sums["plans"] += 1
            case Kind.ACTION.value if "plan" in body:
                sums[str(body.get("outcome"))] += 1
            case Kind.FAILURE.value if body.get("failure") not in INTERRUPTED:
                sums["failures"] += 1
            case Kind.VERIFY.value:
                sums["verified" if body.get("is_reached") else "missed"] += 1
            case Kind.SLEEP.value:
                self._add("tokens", body.get("tokens"))
                self._add("usd", body.get("usd"))
            case Kind.NOTE.value if isinstance(body.get("digest"), int):
                self.digest_day = int(str(body["digest"]))
            case _:
                pass

    def values(self) -> dict[str, float]:
        """Counters by name."""
        return {name: float(self._sums[name]) for name in NAMES}

    def sentence(self) -> str:
        """Summary for people."""
        sums = self._sums
        return (
            f"Totals: {sums['wakes']:g} wakes, {sums['plans']:g} plans ({sums['applied']:g} applied, "
            f"{sums['proposed']:g} proposed, {sums['refused']:g} refused), {sums['missed']:g} missed targets, "
            f"{sums['failures']:g} failures of the model, {sums['tokens']:g} tokens, {sums['usd']:.2f} $."
        )

    def _add(self, name: str, value: object) -> None:
        self._sums[name] += value if isinstance(value, int | float) else 0  # type: ignore[assignment]  # dollars too
