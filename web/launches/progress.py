"""Progress of a start: its phases with their times, from the log of the run's supervisor."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

SUPERVISOR_LOG = "supervisor"
"""Log with the events of the run's processes: `TIME PROGRAM KIND MESSAGE` in each line."""

_LINE = re.compile(r"(?P<at>\S+) (?P<program>\S+) (?P<kind>[a-z]+) ?(?P<message>.*)")


class PhaseState(Enum):
    """State of a phase: WAITING ─► ACTIVE ─► DONE; when the run ended in it FAILED, or STOPPED as was asked."""

    WAITING = "waiting"
    ACTIVE = "active"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Phase of a start."""

    title: str
    state: PhaseState
    duration_s: float | None
    """Seconds that it took, or takes so far; None before it began."""
    detail: str
    """Latest message of its processes; empty without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    at: float
    program: str
    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    title: str
    programs: str
    """Pattern of the processes that do it."""
    done: str
    """Kind of event after which it is done."""
    is_optional: bool = False
    """True for one that only some runs have."""


_STEPS = (
    _Step(title="Weight store", programs="weights", done="ready"),
    _Step(title="Dataflow", programs="dataflow", done="ready"),
    _Step(title="Fleet service", programs="fleet", done="ready", is_optional=True),
    _Step(title="Model", programs="prepare", done="exited", is_optional=True),
    _Step(title="Nodes", programs=r"node-.*", done="ready", is_optional=True),
    _Step(title="Trainer", programs=r"trainer-.*", done="ready"),
)


def phases(log: str, *, launched_at: float, now: float, end: PhaseState | None = None) -> tuple[Phase, ...]:
    """Returns the phases of the latest start. log: of the supervisor. launched_at, now: Unix seconds. end: state of the
    phases in which the run ended; None while it is active."""
    events = _latest_start(list(_events(log)))
    begun_at = events[0].at if events else None
    process = _phase("Process", launched_at, begun_at, now, end, detail="")
    first_step = next((event.at for event in events if event.kind == "stepped"), None)
    middle = [phase for step in _STEPS if (phase := _of_step(step, events, now, end)) is not None]
    ready_at = max((event.at for event in events if event.kind in ("ready", "exited")), default=None)
    is_ready = bool(middle) and all(phase.state is PhaseState.DONE for phase in middle)
    step_began = ready_at if is_ready or first_step is not None else None
    return (process, *middle, _phase("First step", step_began, first_step, now, end, detail=""))


def start_duration_s(log: str) -> float:
    """Returns the time from the latest start to its first step. Seconds; 0 before it."""
    events = _latest_start(list(_events(log)))
    return next((event.at - events[0].at for event in events if event.kind == "stepped"), 0.0)


def has_started(shown: Sequence[Phase]) -> bool:
    """Returns whether the first step is done."""
    return shown[-1].state is PhaseState.DONE


def _events(log: str) -> Iterator[_Event]:
    for line in log.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        try:
            at = datetime.fromisoformat(match["at"]).timestamp()
        except ValueError:
            continue  # the rest of a message of several lines
        yield _Event(at=at, program=match["program"], kind=match["kind"], message=match["message"])


def _latest_start(events: list[_Event]) -> list[_Event]:
    """Returns the events since the weight store, which is started first, was started by a new supervisor."""
    starts = [
        index
        for index, event in enumerate(events)
        if (event.program, event.kind) == ("weights", "started")
        and (index == 0 or events[index - 1].kind != "restarting")
    ]
    return events[starts[-1] :] if starts else events


def _of_step(step: _Step, events: Sequence[_Event], now: float, run_end: PhaseState | None) -> Phase | None:
    own = [event for event in events if re.fullmatch(step.programs, event.program)]
    if not own and step.is_optional:
        return None
    programs = {event.program for event in own}
    done = {event.program: event.at for event in reversed(own) if event.kind == step.done}
    end = max(done.values()) if programs and done.keys() == programs else None
    latest = own[-1] if own else None
    detail = latest.message if latest is not None and latest.kind in ("progress", "failed") and end is None else ""
    count = f"{len(done)} of {len(programs)} ready" if len(programs) > 1 else ""
    return _phase(
        step.title, own[0].at if own else None, end, now, run_end, detail="; ".join(filter(None, (count, detail)))
    )


def _phase(
    title: str, begun_at: float | None, end: float | None, now: float, run_end: PhaseState | None, *, detail: str
) -> Phase:
    if begun_at is None:
        return Phase(title=title, state=PhaseState.WAITING, duration_s=None, detail=detail)
    if end is not None:
        return Phase(title=title, state=PhaseState.DONE, duration_s=max(0.0, end - begun_at), detail=detail)
    duration_s = max(0.0, now - begun_at) if run_end is None else None
    return Phase(title=title, state=run_end or PhaseState.ACTIVE, duration_s=duration_s, detail=detail)
