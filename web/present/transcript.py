"""The maintainer's transcript as a page shows it: wakes, and in each what it was told, asked, decided and did."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from astraflow.contract.chains import chain_break, digest_of
from astraflow.contract.maintenance import TranscriptEntry, TranscriptPage
from web.present import formats
from web.present.pools import usd
from web.reading.exports import Sheet

COLUMNS = ("ordinal", "unix_s", "wake", "kind", "body", "previous", "hash")

MOST_TEXT = 20_000
"""Characters of one entry; the file has it whole."""
MOST_SAID = 400
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
    said: str
    """What it comes to, in a sentence or two."""
    findings: tuple[tuple[str, str, str], ...]
    """Of the guard: code, tone, sentence."""
    body: str
    """All of it, as JSON; texts that are JSON themselves are unfolded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeView:
    """Entries that belong together: of one wake, or between two."""

    wake: str
    at: float
    title: str
    outcome: str
    tone: str
    facts: tuple[str, ...]
    steps: tuple[StepView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptView:
    """A stretch of a transcript, the newest wake first."""

    chain: str
    wake: str
    wakes: tuple[WakeView, ...]
    older: int | None
    """Where the next page begins; None on the last."""
    newest: int
    """Of the latest entry that is shown; -1 for none."""
    entries: int
    chain_text: str
    chain_tone: str
    problem: str = ""


def transcript_view(page: TranscriptPage, *, wake: str = "") -> TranscriptView:
    """A page of it. wake: only that one was asked for."""
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
    """What the page shows, to take away; the body is JSON, and each line's hash can be checked."""
    rows = [
        (one.ordinal, one.at, one.wake, one.kind, json.dumps(one.body, sort_keys=True), one.previous, one.hash)
        for one in page.entries
    ]
    return Sheet(name="astraflow-transcript", columns=COLUMNS, rows=rows)


def _chain(oldest_first: Sequence[TranscriptEntry], *, is_stretch: bool) -> tuple[str, str]:
    if not oldest_first:
        return "Nothing is kept yet", "off"
    if is_stretch:
        broken = chain_break(oldest_first)
    else:
        broken = next((entry.ordinal for entry in oldest_first if digest_of(entry) != entry.hash), None)
    if broken is not None:
        return f"The chain breaks at entry {broken}: it, or what came before it, was changed", "bad"
    what = "follow one another" if is_stretch else "are as they were written"
    return f"Entries {oldest_first[0].ordinal} to {oldest_first[-1].ordinal} {what}", "good"


def _wake(name: str, entries: Sequence[TranscriptEntry]) -> WakeView:
    by_kind = {entry.kind: entry for entry in entries}
    began, slept = by_kind.get("wake"), by_kind.get("sleep")
    signals = _signals(began.body) if began is not None else ""
    outcome, tone = "", "busy"
    facts: list[str] = []
    if slept is not None:
        sums = slept.body
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
    title, tone, said = _TELL.get(entry.kind, _plain)(entry.body)
    text = _readable(entry.body)
    return StepView(
        ordinal=entry.ordinal,
        at=entry.at,
        kind=entry.kind,
        title=title or entry.kind,
        tone=tone,
        said=formats.shortened(said, at_most=MOST_SAID),
        findings=_findings(entry.body) if entry.kind == "verdict" else (),
        body=formats.shortened(text, at_most=MOST_TEXT),
    )


def _readable(body: Body) -> str:
    try:
        return json.dumps(_unfolded(body), indent=2, ensure_ascii=False)
    except RecursionError:  # somebody nested on purpose
        return json.dumps(body, ensure_ascii=False)


def _unfolded(value: Any) -> Any:
    """With what tools and the opening say, which is JSON in a text, as what it says."""
    if isinstance(value, Mapping):
        return {name: _unfolded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_unfolded(one) for one in value]
    if not isinstance(value, str) or "{" not in value:
        return value
    lines = [_line(line) for line in value.split("\n")]
    if all(isinstance(line, str) for line in lines):
        return value
    return lines[0] if len(lines) == 1 else lines


def _line(text: str) -> Any:
    """`{...}`, or `name: {...}`; anything else stays a text."""
    found = _JSON_LINE.fullmatch(text)
    if found is None:
        return text
    try:
        said = json.loads(found["json"])
    except ValueError:
        return text
    return {found["name"]: said} if found["name"] else said


Told = tuple[str, str, str]


def _opened(body: Body) -> Told:
    label = ", a stand-in" if body.get("is_simulated") is True else ""
    return "Began", "off", f"model {_text(body.get('model'))}{label}"


def _woken(body: Body) -> Told:
    return "Woken", "busy", f"{_signals(body)}; mode {_text(body.get('mode'))}"


def _request(body: Body) -> Told:
    return f"Asked the model, turn {_text(body.get('turn'))}", "off", ""


def _response(body: Body) -> Told:
    parts = [part for part in _list(body.get("parts")) if isinstance(part, dict)]
    said = " ".join(_text(part["said"]) for part in parts if "said" in part)
    calls = ", ".join(_text(part.get("name")) for part in parts if "call" in part)
    return "The model", "busy", said + (f"{' ' if said else ''}asks for {calls}" if calls else "")


def _tool(body: Body) -> Told:
    is_error = body.get("is_error") is True
    arguments = json.dumps(body.get("arguments"), ensure_ascii=False)
    return f"Tool {_text(body.get('name'))}", "bad" if is_error else "off", arguments


def _verdict(body: Body) -> Told:
    word = _text(body.get("verdict"))
    phase = "when it was applied" if body.get("phase") == "apply" else "of the plan"
    return f"Guard, {phase}", _TONES.get(word, "off"), f"{word.replace('_', ' ')}, pool {_text(body.get('pool'))}"


def _action(body: Body) -> Told:
    outcome = _text(body.get("outcome"))
    return f"Action: {outcome}", _OUTCOMES.get(outcome, "off"), _text(body.get("message"))


def _proposal(body: Body) -> Told:
    state = _text(body.get("state"))
    tone = {"approved": "good", "rejected": "bad"}.get(state, "off")
    return f"Proposal: {state}", tone, f"pool {_text(body.get('pool'))}"


def _verify(body: Body) -> Told:
    is_reached = body.get("is_reached") is True
    said = f"pool {_text(body.get('pool'))}: {_text(body.get('ready'))} of {_text(body.get('target'))} nodes work"
    return "Looked again", "good" if is_reached else "bad", said


def _note(body: Body) -> Told:
    words = _text(body.get("words"))
    return "Note", "good", _text(body.get("text")) + (f" ({words})" if words else "")


def _failure(body: Body) -> Told:
    failure = _text(body.get("failure")).replace("_", " ")
    return f"Failed: {failure}", "bad", _text(body.get("problem"))


def _budget(body: Body) -> Told:
    of = f"{_text(body.get('unit')).replace('_', ' ')} of a {_text(body.get('scope'))}"
    return "Budget spent", "warn", f"{of}: {_text(body.get('used'))} of {_text(body.get('limit'))}"


def _sleep(body: Body) -> Told:
    return "Asleep", "off", _text(body.get("outcome")).replace("_", " ")


def _orders(body: Body) -> Told:
    return "Orders", "warn", f"mode {_text(body.get('mode'))}, kill switch {_text(body.get('kill'))}"


def _torn(body: Body) -> Told:
    return "Cut off", "warn", f"{_text(body.get('size_bytes'))} bytes that were being written when it was stopped"


def _plain(body: Body) -> Told:
    return "", "off", ""


_TELL: Mapping[str, Callable[[Body], Told]] = {
    "opened": _opened,
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
    "torn": _torn,
}


def _signals(body: Body) -> str:
    found = []
    for signal in _list(body.get("signals")):
        if isinstance(signal, dict):
            name = _text(signal.get("name") or signal.get("signal")).replace("_", " ")
            pool = _text(signal.get("pool"))
            found.append(f"{name} in {pool}" if pool else name)
    return ", ".join(found)


def _findings(body: Body) -> tuple[tuple[str, str, str], ...]:
    return tuple(
        (_text(one[0]), _TONES.get(_text(one[1]), "off"), _text(one[2]))
        for one in _list(body.get("findings"))
        if isinstance(one, list) and len(one) == 3
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
