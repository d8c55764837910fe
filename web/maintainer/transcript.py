"""Transcript of the maintainer: wakes with their signals, model calls, tool calls, decisions and actions."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from astraflow.contract.fleet.maintainer import TranscriptEntry, TranscriptPage
from astraflow.contract.fleet.transcript_chain import entry_hash, first_broken_entry
from web.components import formats
from web.components.downloads import Sheet
from web.components.formats import usd

COLUMNS = ("ordinal", "unix_s", "wake", "kind", "body", "previous", "hash")

MAX_TEXT_CHARS = 20_000
"""Maximum number of characters shown of one entry; the downloaded file is complete."""
MAX_MESSAGE_CHARS = 400
_JSON_LINE = re.compile(r"(?:(?P<name>[a-z_]{1,40}): )?(?P<json>\{.*\})")

_TONES = {"allowed": "good", "needs_approval": "warn", "refused": "bad"}
_OUTCOMES = {"applied": "good", "proposed": "warn", "recorded": "busy", "refused": "bad", "done": "good"}

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """One entry."""

    ordinal: int
    at: float
    kind: str
    title: str
    tone: str
    message: str
    """Summary in a sentence or two."""
    findings: tuple[tuple[str, str, str], ...]
    """Findings of the guard: code, tone, sentence."""
    body: str
    """Whole entry as JSON; texts that contain JSON are expanded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeView:
    """Entries of one wake, or between two wakes."""

    wake: str
    at: float
    title: str
    outcome: str
    tone: str
    facts: tuple[str, ...]
    steps: tuple[StepView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptView:
    """Part of a transcript, the newest wake first."""

    chain: str
    wake: str
    wakes: tuple[WakeView, ...]
    older: int | None
    """Ordinal at which the next page begins; None on the last page."""
    newest: int
    """Ordinal of the newest shown entry; -1 for none."""
    entries: int
    chain_text: str
    chain_tone: str
    problem: str = ""


def transcript_view(page: TranscriptPage, *, wake: str = "") -> TranscriptView:
    """Builds a page. wake: id of the only wake that was requested; empty for all."""
    newest_first = page.entries
    wakes = [_wake(name, list(group)[::-1]) for name, group in groupby(newest_first, key=lambda entry: entry.wake)]
    text, tone = _chain(newest_first[::-1], is_stretch=not wake)
    return TranscriptView(
        chain=page.chain,
        wake=wake,
        wakes=tuple(wakes),
        older=newest_first[-1].ordinal if page.has_older and newest_first else None,
        newest=newest_first[0].ordinal if newest_first else -1,
        entries=len(newest_first),
        chain_text=text,
        chain_tone=tone,
    )


def transcript_sheet(page: TranscriptPage) -> Sheet:
    """Returns the page as a sheet; the body is JSON, and the hash of each row can be verified."""
    rows = [
        (
            entry.ordinal,
            entry.at,
            entry.wake,
            entry.kind,
            json.dumps(entry.body, sort_keys=True),
            entry.previous,
            entry.hash,
        )
        for entry in page.entries
    ]
    return Sheet(name="astraflow-transcript", columns=COLUMNS, rows=rows)


def _chain(oldest_first: Sequence[TranscriptEntry], *, is_stretch: bool) -> tuple[str, str]:
    if not oldest_first:
        return "No entries yet", "off"
    if is_stretch:
        broken = first_broken_entry(oldest_first)
    else:
        broken = next((entry.ordinal for entry in oldest_first if entry_hash(entry) != entry.hash), None)
    if broken is not None:
        return f"Chain broken at entry {broken}: it or an earlier entry was changed", "bad"
    result = "form an intact chain" if is_stretch else "are unchanged"
    return f"Entries {oldest_first[0].ordinal} to {oldest_first[-1].ordinal} {result}", "good"


def _wake(name: str, entries: Sequence[TranscriptEntry]) -> WakeView:
    by_kind = {entry.kind: entry for entry in entries}
    wake_entry, sleep_entry = by_kind.get("wake"), by_kind.get("sleep")
    signals = _signals(wake_entry.body) if wake_entry is not None else ""
    outcome, tone = "", "busy"
    facts: list[str] = []
    if sleep_entry is not None:
        sums = sleep_entry.body
        outcome = _text(sums.get("outcome")).replace("_", " ")
        tone = "good" if outcome == "done" else "warn"
        facts = [
            f"{formats.count(_number(sums.get('tool_calls')))} calls",
            f"{formats.count(_number(sums.get('tokens')))} tokens",
            usd(_number(sums.get("usd"))),
            formats.duration(_number(sums.get("duration_s"))),
        ]
    actions = [_text(entry.body.get("outcome")) for entry in entries if entry.kind == "action"]
    if actions:
        facts.insert(0, ", ".join(actions))
    return WakeView(
        wake=name,
        at=entries[0].at,
        title=(signals or "Wake") if name else "Between wakes",
        outcome=outcome,
        tone=tone if name else "off",
        facts=tuple(facts),
        steps=tuple(_step(entry) for entry in entries),
    )


def _step(entry: TranscriptEntry) -> StepView:
    title, tone, message = _STEP_READERS.get(entry.kind, _plain)(entry.body)
    text = _readable(entry.body)
    return StepView(
        ordinal=entry.ordinal,
        at=entry.at,
        kind=entry.kind,
        title=title or entry.kind,
        tone=tone,
        message=formats.shortened(message, at_most=MAX_MESSAGE_CHARS),
        findings=_findings(entry.body) if entry.kind == "verdict" else (),
        body=formats.shortened(text, at_most=MAX_TEXT_CHARS),
    )


def _readable(body: Body) -> str:
    try:
        return json.dumps(_unfolded(body), indent=2, ensure_ascii=False)
    except RecursionError:  # deeply nested on purpose
        return json.dumps(body, ensure_ascii=False)


def _unfolded(value: Any) -> Any:
    """Expands texts of tools and of the opening entry that contain JSON."""
    if isinstance(value, Mapping):
        return {name: _unfolded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_unfolded(item) for item in value]
    if not isinstance(value, str) or "{" not in value:
        return value
    lines = [_line(line) for line in value.split("\n")]
    if all(isinstance(line, str) for line in lines):
        return value
    return lines[0] if len(lines) == 1 else lines


def _line(text: str) -> Any:
    """Parses `{...}` or `name: {...}`; returns other text unchanged."""
    match = _JSON_LINE.fullmatch(text)
    if match is None:
        return text
    try:
        value = json.loads(match["json"])
    except ValueError:
        return text
    return {match["name"]: value} if match["name"] else value


StepTexts = tuple[str, str, str]


def _opened_texts(body: Body) -> StepTexts:
    label = ", simulated" if body.get("is_simulated") is True else ""
    return "Started", "off", f"model {_text(body.get('model'))}{label}"


def _woken(body: Body) -> StepTexts:
    return "Wake", "busy", f"{_signals(body)}; mode {_text(body.get('mode'))}"


def _request(body: Body) -> StepTexts:
    return f"Model request, turn {_text(body.get('turn'))}", "off", ""


def _response(body: Body) -> StepTexts:
    parts = [part for part in _list(body.get("parts")) if isinstance(part, dict)]
    message = " ".join(_text(part["said"]) for part in parts if "said" in part)
    calls = ", ".join(_text(part.get("name")) for part in parts if "call" in part)
    return "Model response", "busy", message + (f"{' ' if message else ''}calls {calls}" if calls else "")


def _tool(body: Body) -> StepTexts:
    is_error = body.get("is_error") is True
    arguments = json.dumps(body.get("arguments"), ensure_ascii=False)
    return f"Tool {_text(body.get('name'))}", "bad" if is_error else "off", arguments


def _verdict(body: Body) -> StepTexts:
    word = _text(body.get("verdict"))
    phase = "at apply" if body.get("phase") == "apply" else "at plan"
    return f"Guard {phase}", _TONES.get(word, "off"), f"{word.replace('_', ' ')}, pool {_text(body.get('pool'))}"


def _action(body: Body) -> StepTexts:
    outcome = _text(body.get("outcome"))
    return f"Action: {outcome}", _OUTCOMES.get(outcome, "off"), _text(body.get("message"))


def _proposal(body: Body) -> StepTexts:
    state = _text(body.get("state"))
    tone = {"approved": "good", "rejected": "bad"}.get(state, "off")
    return f"Proposal: {state}", tone, f"pool {_text(body.get('pool'))}"


def _verify(body: Body) -> StepTexts:
    is_reached = body.get("is_reached") is True
    summary = f"pool {_text(body.get('pool'))}: {_text(body.get('ready'))} of {_text(body.get('target'))} nodes ready"
    return "Verification", "good" if is_reached else "bad", summary


def _note(body: Body) -> StepTexts:
    words = _text(body.get("words"))
    return "Note", "good", _text(body.get("text")) + (f" ({words})" if words else "")


def _failure(body: Body) -> StepTexts:
    failure = _text(body.get("failure")).replace("_", " ")
    return f"Failed: {failure}", "bad", _text(body.get("problem"))


def _budget(body: Body) -> StepTexts:
    unit = f"{_text(body.get('unit')).replace('_', ' ')} per {_text(body.get('scope'))}"
    return "Budget exhausted", "warn", f"{unit}: {_text(body.get('used'))} of {_text(body.get('limit'))}"


def _sleep(body: Body) -> StepTexts:
    return "Sleep", "off", _text(body.get("outcome")).replace("_", " ")


def _orders(body: Body) -> StepTexts:
    return "Control state", "warn", f"mode {_text(body.get('mode'))}, kill switch {_text(body.get('kill'))}"


def _incomplete(body: Body) -> StepTexts:
    return "Incomplete", "warn", f"{_text(body.get('size_bytes'))} bytes, partially written when it stopped"


def _plain(body: Body) -> StepTexts:
    return "", "off", ""


_STEP_READERS: Mapping[str, Callable[[Body], StepTexts]] = {
    "opened": _opened_texts,
    "wake": _woken,
    "request": _request,
    "response": _response,
    "tool": _tool,
    "verdict": _verdict,
    "action": _action,
    "proposal": _proposal,
    "verify": _verify,
    "note": _note,
    "failure": _failure,
    "budget": _budget,
    "sleep": _sleep,
    "orders": _orders,
    "torn": _incomplete,
}


def _signals(body: Body) -> str:
    texts = []
    for signal in _list(body.get("signals")):
        if isinstance(signal, dict):
            name = _text(signal.get("name") or signal.get("signal")).replace("_", " ")
            pool = _text(signal.get("pool"))
            texts.append(f"{name} in {pool}" if pool else name)
    return ", ".join(texts)


def _findings(body: Body) -> tuple[tuple[str, str, str], ...]:
    return tuple(
        (_text(finding[0]), _TONES.get(_text(finding[1]), "off"), _text(finding[2]))
        for finding in _list(body.get("findings"))
        if isinstance(finding, list) and len(finding) == 3
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
