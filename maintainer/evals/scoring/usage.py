"""Usage of a maintainer from its transcript, and cited numbers without a source."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from astraflow.contract.fleet.maintainer import TranscriptEntry

OUT_OF_SCOPE = frozenset({"unknown_tool", "unknown_plan", "unknown_name", "bad_arguments", "one_at_a_time"})
"""Error words of calls outside the scope of a maintainer."""

_TOKEN = re.compile(
    r"\b(?:pool|node|provider|type|region)-[0-9a-f]{8,16}\b|\b[tx]-[0-9a-f]{8}\b|\b[0-9A-HJKMNP-TV-Z]{26}\b"
)
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainerUse:
    """Usage of a maintainer from its transcript."""

    wakes: int = 0
    calls: int = 0
    tokens: int = 0
    usd: float = 0.0
    applied: int = 0
    out_of_scope: int = 0
    failures: int = 0
    cited: int = 0
    """Numbers in reasons, escalations and notes. Count."""
    cited_wrong: int = 0
    """Cited numbers that the maintainer had not received in that wake. Count."""

    def __add__(self, other: "MaintainerUse") -> "MaintainerUse":
        return MaintainerUse(
            **{item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(self)}
        )


def used(entries: Iterable[TranscriptEntry]) -> MaintainerUse:
    """Computes the usage from a transcript."""
    sums: dict[str, float] = dict.fromkeys(MaintainerUse.__slots__, 0)
    shown: set[float] = set()
    wake = ""
    for entry in entries:
        body: Mapping[str, Any] = entry.body
        if entry.wake != wake:
            shown, wake = set(), entry.wake
        match entry.kind:
            case "wake":
                sums["wakes"] += 1
            case "request":
                shown |= {
                    number
                    for message in body["messages"]
                    for part in message["parts"]
                    for number in _numbers_shown(part)
                }
            case "response":
                usage = body["usage"]
                sums["tokens"] += sum(usage.values())
                sums["usd"] += body["usd"]
                cited = [number for part in body["parts"] for number in _cited(part)]
                sums["cited"] += len(cited)
                sums["cited_wrong"] += sum(1 for number in cited if not _was_shown(number, shown))
            case "tool":
                sums["calls"] += 1
                sums["out_of_scope"] += _error(body["result"]) in OUT_OF_SCOPE
            case "action":
                sums["applied"] += body.get("outcome") == "applied"
            case "failure":
                sums["failures"] += 1
                sums["tokens"] += sum(body["usage"].values())
                sums["usd"] += body["usd"]
    return MaintainerUse(**{name: value if name == "usd" else int(value) for name, value in sums.items()})  # type: ignore[arg-type]  # types match the fields


def numbers(text: str) -> list[str]:
    """Numbers as written, without tokens and ids.

    >>> numbers("pool-0a1b2c3d lost 2 of 10.5 nodes")
    ['2', '10.5']
    """
    return _NUMBER.findall(_TOKEN.sub(" ", text))


def _numbers_shown(part: Mapping[str, Any]) -> set[float]:
    return {float(number) for number in numbers(str(part.get("said") or part.get("content") or ""))}


def _cited(part: Mapping[str, Any]) -> list[str]:
    if "said" in part:
        return numbers(part["said"])
    arguments = part.get("arguments") or {}
    return [number for name in ("reason", "text") for number in numbers(str(arguments.get(name, "")))]


def _was_shown(cited: str, shown: Sequence[float] | set[float]) -> bool:
    """True if the number was shown, up to rounding."""
    decimals = len(cited.partition(".")[2])
    value = float(cited)
    return any(abs(value - number) <= 0.5 * 10**-decimals + 1e-9 for number in shown)


def _error(result: str) -> str:
    body = json.loads(result)
    return str(body.get("error", "")) if isinstance(body, dict) else ""
