"""Spans of a group's way through a run, from lease to step. Off unless asked for, and then one `if`.

    with span("rl.episode", group=task.group, task=task.id):
        ...

The hops of one group share a trace although they happen in several processes and nobody passes anything along: the id
of the trace is derived from the run's name and the group's. So are those of a trainer's step and of a version of
weights. A hop that takes part in a step and names its groups is seen from both sides: it has a span in the step's
trace, with links to the groups' traces, and one in each of those, with a link back.

`spans` makes OpenTelemetry of it. What is not written in time is dropped: no hop ever waits for its span.
"""

import os
import random
import time
from collections.abc import Iterable, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from types import TracebackType
from typing import Annotated, Protocol, Self

from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config import Config
from astraflow.runtime.overrides import SetBy

TRACES = "ASTRAFLOW_TRACES"
"""Environment variable that says where spans go, instead of the recipe: `TO`, or `TO#SHARE`."""

Attribute = str | int | float | bool


class TracingConfig(Config):
    """Where spans go."""

    to: Annotated[str, SetBy.RECIPE] = ""
    """A folder (in the run's if relative), `http://HOST:PORT` of an OpenTelemetry collector, or empty for none."""
    share: float = Field(default=1.0, ge=0, le=1)
    """Share of groups that are followed; the same ones in every process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRecord:
    """A span that has ended. Ids as OpenTelemetry has them: 128 bits for a trace, 64 for a span."""

    name: str
    trace: int
    span: int
    parent: int | None
    """Of the same trace."""
    links: tuple[tuple[int, int], ...]
    """Traces and spans of other traces that it belongs to."""
    began_ns: int
    ended_ns: int
    """Unix time."""
    attributes: Mapping[str, Attribute]
    error: str
    """What was raised; empty when nothing was."""


class Recorder(Protocol):
    """Takes spans that have ended, without waiting."""

    def record(self, span: SpanRecord) -> None:
        """Keep it or drop it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tracing:
    recorder: Recorder
    run: str
    share: float


_Place = tuple[int, int]
"""A trace, and a span in it."""

_active: _Tracing | None = None
_configured: tuple[Recorder, float] | None = None
_current: ContextVar[_Place | None] = ContextVar("astraflow_span", default=None)


def configure(recorder: Recorder | None, *, share: float = 1.0) -> None:
    """Have spans recorded once `begin_run` has said of which run; None for none."""
    global _active, _configured
    _active = None
    _configured = None if recorder is None else (recorder, share)


def begin_run(run: str) -> None:
    """Spans are of this run from now on: its name is part of every trace's id."""
    global _active
    if _configured is not None:
        recorder, share = _configured
        _active = _Tracing(recorder=recorder, run=run, share=share)


def chosen(recipe: TracingConfig) -> TracingConfig:
    """What the environment says, or else the recipe. Raises: InvalidInput."""
    given = os.environ.get(TRACES, "")
    return from_text(given) if given else recipe


def from_text(text: str) -> TracingConfig:
    """`TO` or `TO#SHARE`, as the environment has it. Raises: InvalidInput.

    >>> from_text("http://collector:4318#0.1")
    TracingConfig(to='http://collector:4318', share=0.1)
    """
    to, mark, share = text.rpartition("#")
    if not mark:
        return TracingConfig(to=text)
    try:
        return TracingConfig.parse({"to": to, "share": float(share)}, where=TRACES)
    except ValueError:
        raise InvalidInput(
            f"{TRACES}: {share!r} is no share of groups: give a number from 0 to 1 after the #"
        ) from None


def to_text(config: TracingConfig) -> str:
    """What `from_text` reads."""
    return f"{config.to}#{config.share:g}"


def span(
    name: str,
    *,
    group: str = "",
    groups: Iterable[str] = (),
    step: str = "",
    version: str = "",
    **attributes: Attribute,
) -> "Hop | _Off":
    """A hop, for a `with`: it is recorded when the block ends.

    group: it is part of this group's way. step, version: it is part of this batch's step, or of this version's way
    (`policy:number`). groups: the groups that take part, read only when spans are recorded. Without any of them it is
    part of the hop around it, and nothing outside of one.
    """
    if _active is None:
        return _OFF
    return Hop(_active, name, group, groups, step, version, attributes)


class Hop:
    """One stretch of time of a group, a step or a version; or of several groups at once."""

    __slots__ = ("_attributes", "_began_ns", "_group", "_groups", "_name", "_parent", "_place", "_token", "_tracing")

    def __init__(
        self,
        tracing: _Tracing,
        name: str,
        group: str,
        groups: Iterable[str],
        step: str,
        version: str,
        attributes: dict[str, Attribute],
    ) -> None:
        self._tracing = tracing
        self._name = name
        self._group = group
        self._groups = groups
        self._attributes = _named(attributes, group=group, step=step, version=version)
        self._parent = _current.get()
        self._place = self._own_place(group, step, version)
        self._token: Token[_Place | None] | None = None
        self._began_ns = 0

    def note(self, *, groups: Iterable[str] | None = None, **attributes: Attribute) -> None:
        """Say what is known only now."""
        self._attributes |= _named(attributes)
        if groups is not None:
            self._groups = groups

    def __enter__(self) -> Self:
        self._token = _current.set(self._place)
        self._began_ns = time.time_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended_ns = time.time_ns()
        if self._token is not None:
            _current.reset(self._token)
        error = "" if kind is None else f"{kind.__name__}: {problem}"
        seen_from = [
            (_trace_id(self._tracing.run, "group", group), _new_span())
            for group in dict.fromkeys(self._groups)
            if self._is_followed(group)
        ]
        if self._place is not None:
            self._record(self._place, links=tuple(seen_from), ended_ns=ended_ns, error=error)
        for place in seen_from:
            self._record(place, links=(self._place,) if self._place else (), ended_ns=ended_ns, error=error)

    def _own_place(self, group: str, step: str, version: str) -> _Place | None:
        run = self._tracing.run
        if group:
            return (_trace_id(run, "group", group), _new_span()) if self._is_followed(group) else None
        if step:
            return (_trace_id(run, "step", step), _new_span())
        if version:
            return (_trace_id(run, "version", version), _new_span())
        return (self._parent[0], _new_span()) if self._parent is not None else None

    def _is_followed(self, group: str) -> bool:
        return _trace_id(self._tracing.run, "group", group) >> 64 < self._tracing.share * 2**64

    def _record(self, place: _Place, *, links: tuple[_Place, ...], ended_ns: int, error: str) -> None:
        is_inside = self._parent is not None and self._parent[0] == place[0]
        self._tracing.recorder.record(
            SpanRecord(
                name=self._name,
                trace=place[0],
                span=place[1],
                parent=self._parent[1] if self._parent is not None and is_inside else None,
                links=links,
                began_ns=self._began_ns,
                ended_ns=ended_ns,
                attributes={"rl.run": self._tracing.run, **self._attributes},
                error=error,
            )
        )


class _Off:
    """A hop that nobody follows."""

    __slots__ = ()

    def note(self, *, groups: Iterable[str] | None = None, **attributes: Attribute) -> None:
        """Nothing is kept."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


_OFF = _Off()


def _named(attributes: Mapping[str, Attribute], **more: str) -> dict[str, Attribute]:
    given = {**attributes, **{key: value for key, value in more.items() if value}}
    return {f"rl.{key}": _plain(value) for key, value in given.items()}


def _plain(value: Attribute) -> Attribute:
    """Names and versions as what they are subclasses of."""
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    return str(value)


@lru_cache(maxsize=4096)
def _trace_id(run: str, kind: str, key: str) -> int:
    return int.from_bytes(blake2b(f"{run}\0{kind}\0{key}".encode(), digest_size=16).digest(), "big")


def _new_span() -> int:
    return random.getrandbits(64) or 1
