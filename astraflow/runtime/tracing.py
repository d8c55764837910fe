"""Tracing of a group from lease to step. Disabled by default, at the cost of one `if`.

    with span("rl.episode", group=task.group, task=task.id):
        ...

The spans of one group share a trace although they are recorded in several processes without context propagation: the
trace id is derived from the run's name and the group's id. The same holds for a trainer's step and a version of
weights. A span that belongs to a step and names groups appears in both: in the step's trace, with links to the groups'
traces, and in each of those, with a link back.

`collect_hops` keeps the spans of a block in memory instead, also when tracing is disabled: for sampled episodes.

`otel_export` exports the spans to OpenTelemetry. Spans that are not exported in time are dropped: tracing never blocks.
"""

import os
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from types import TracebackType
from typing import Annotated, Protocol, Self

from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.timelines import MAX_HOPS, Hop
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy

TRACES = "ASTRAFLOW_TRACES"
"""Environment variable that overrides the recipe's target of spans: `TO`, or `TO#SHARE`."""

_MAX_CHARACTERS = 512
"""Limit of the texts of a hop."""

Attribute = str | int | float | bool


class TracingConfig(Config):
    """Target and sampling of spans."""

    to: Annotated[str, SettableBy.RECIPE] = ""
    """A folder (relative to the run's), `http://HOST:PORT` of an OpenTelemetry collector, or empty for none."""
    share: float = Field(default=1.0, ge=0, le=1)
    """Share of groups that are traced; the same groups in every process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRecord:
    """A finished span. Ids as in OpenTelemetry: 128 bits for a trace, 64 for a span."""

    name: str
    trace: int
    span: int
    parent: int | None
    """Parent span in the same trace; None for a root."""
    links: tuple[tuple[int, int], ...]
    """Linked spans of other traces, as (trace, span)."""
    began_ns: int
    ended_ns: int
    """Unix nanoseconds."""
    attributes: Mapping[str, Attribute]
    error: str
    """Exception that was raised; empty without one."""


class Recorder(Protocol):
    """Receives finished spans without blocking."""

    def record(self, span: SpanRecord) -> None:
        """Queues or drops the span."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tracing:
    recorder: Recorder
    run: str
    share: float


_SpanContext = tuple[int, int]
"""Trace id and span id."""

_active: _Tracing | None = None
_configured: tuple[Recorder, float] | None = None
_current: ContextVar[_SpanContext | None] = ContextVar("astraflow_span", default=None)


_collected: ContextVar[list[Hop] | None] = ContextVar("astraflow_hops", default=None)


def configure(recorder: Recorder | None, *, share: float = 1.0) -> None:
    """Sets the recorder, which becomes active with `begin_run`; None disables tracing."""
    global _active, _configured
    _active = None
    _configured = None if recorder is None else (recorder, share)


def begin_run(run: str) -> None:
    """Activates tracing for this run, whose name is part of every trace id."""
    global _active
    if _configured is not None:
        recorder, share = _configured
        _active = _Tracing(recorder=recorder, run=run, share=share)


def effective_config(recipe: TracingConfig) -> TracingConfig:
    """Returns the config from the environment, else the recipe's. Raises: InvalidInput."""
    text = os.environ.get(TRACES, "")
    return parse_tracing(text) if text else recipe


def parse_tracing(text: str) -> TracingConfig:
    """Parses `TO` or `TO#SHARE`, the format of the environment variable. Raises: InvalidInput.

    >>> parse_tracing("http://collector:4318#0.1")
    TracingConfig(to='http://collector:4318', share=0.1)
    """
    to, separator, share = text.rpartition("#")
    if not separator:
        return TracingConfig(to=text)
    try:
        return TracingConfig.parse({"to": to, "share": float(share)}, where=TRACES)
    except ValueError:
        raise InvalidInput(
            f"cannot parse {TRACES}: {share!r} is not a share of groups; give a number from 0 to 1 after the #",
            code="tracing.invalid_target",
        ) from None


def format_tracing(config: TracingConfig) -> str:
    """Formats a config for `parse_tracing`."""
    return f"{config.to}#{config.share:g}"


def span(
    name: str,
    *,
    group: str = "",
    groups: Iterable[str] = (),
    step: str = "",
    version: str = "",
    **attributes: Attribute,
) -> "TraceSpan | _CollectedSpan | _NoopSpan":
    """Returns a span for a `with` block; it is recorded when the block ends.

    group: the span is part of this group's trace. step, version: it is part of the trace of this batch's step or of
    this version (`policy:number`). groups: the groups that take part, read only when tracing is active. Without any of
    them it is a child of the enclosing span, and not recorded outside of one.
    """
    collected = _collected.get()
    if _active is None and collected is None:
        return _NOOP_SPAN
    exported = _NOOP_SPAN if _active is None else TraceSpan(_active, name, group, groups, step, version, attributes)
    return exported if collected is None else _CollectedSpan(collected, name, attributes, exported)


@contextmanager
def collect_hops() -> Iterator[list[Hop]]:
    """Yields a list that gets the spans of the block, and of the tasks begun in it, as they end; at most `MAX_HOPS`."""
    hops: list[Hop] = []
    token = _collected.set(hops)
    try:
        yield hops
    finally:
        _collected.reset(token)


class TraceSpan:
    """A span of a group, a step or a version, or of several groups at once."""

    __slots__ = ("_attributes", "_began_ns", "_context", "_group", "_groups", "_name", "_parent", "_token", "_tracing")

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
        self._attributes = _prefixed(attributes, group=group, step=step, version=version)
        self._parent = _current.get()
        self._context = self._own_context(group, step, version)
        self._token: Token[_SpanContext | None] | None = None
        self._began_ns = 0

    def annotate(self, *, groups: Iterable[str] | None = None, **attributes: Attribute) -> None:
        """Adds attributes to a span that has begun."""
        self._attributes |= _prefixed(attributes)
        if groups is not None:
            self._groups = groups

    def __enter__(self) -> Self:
        self._token = _current.set(self._context)
        self._began_ns = time.time_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended_ns = time.time_ns()
        if self._token is not None:
            _current.reset(self._token)
        error = "" if kind is None else f"{kind.__name__}: {problem}"
        group_contexts = [
            (_trace_id(self._tracing.run, "group", group), _new_span())
            for group in dict.fromkeys(self._groups)
            if self._is_sampled(group)
        ]
        if self._context is not None:
            self._record(self._context, links=tuple(group_contexts), ended_ns=ended_ns, error=error)
        for context in group_contexts:
            self._record(context, links=(self._context,) if self._context else (), ended_ns=ended_ns, error=error)

    def _own_context(self, group: str, step: str, version: str) -> _SpanContext | None:
        run = self._tracing.run
        if group:
            return (_trace_id(run, "group", group), _new_span()) if self._is_sampled(group) else None
        if step:
            return (_trace_id(run, "step", step), _new_span())
        if version:
            return (_trace_id(run, "version", version), _new_span())
        return (self._parent[0], _new_span()) if self._parent is not None else None

    def _is_sampled(self, group: str) -> bool:
        return _trace_id(self._tracing.run, "group", group) >> 64 < self._tracing.share * 2**64

    def _record(self, context: _SpanContext, *, links: tuple[_SpanContext, ...], ended_ns: int, error: str) -> None:
        is_inside = self._parent is not None and self._parent[0] == context[0]
        self._tracing.recorder.record(
            SpanRecord(
                name=self._name,
                trace=context[0],
                span=context[1],
                parent=self._parent[1] if self._parent is not None and is_inside else None,
                links=links,
                began_ns=self._began_ns,
                ended_ns=ended_ns,
                attributes={"rl.run": self._tracing.run, **self._attributes},
                error=error,
            )
        )


class _CollectedSpan:
    """A span that is kept in memory, besides its export if tracing is active."""

    __slots__ = ("_attributes", "_began_ns", "_collected", "_exported", "_name")

    def __init__(
        self, collected: list[Hop], name: str, attributes: Mapping[str, Attribute], exported: "TraceSpan | _NoopSpan"
    ) -> None:
        self._collected = collected
        self._name = name
        self._attributes = dict(attributes)
        self._exported = exported
        self._began_ns = 0

    def annotate(self, *, groups: Iterable[str] | None = None, **attributes: Attribute) -> None:
        """Adds attributes to a span that has begun."""
        self._attributes |= attributes
        self._exported.annotate(groups=groups, **attributes)

    def __enter__(self) -> Self:
        self._exported.__enter__()
        self._began_ns = time.time_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        duration_ns = time.time_ns() - self._began_ns
        self._exported.__exit__(kind, problem, trace)
        if len(self._collected) < MAX_HOPS:
            self._collected.append(
                Hop(
                    name=self._name,
                    began_at=self._began_ns / 1e9,
                    duration_s=max(0, duration_ns) / 1e9,
                    detail=", ".join(f"{key} {value}" for key, value in self._attributes.items())[:_MAX_CHARACTERS],
                    error="" if kind is None else f"{kind.__name__}: {problem}"[:_MAX_CHARACTERS],
                )
            )


class _NoopSpan:
    """Span of a disabled or unsampled trace."""

    __slots__ = ()

    def annotate(self, *, groups: Iterable[str] | None = None, **attributes: Attribute) -> None:
        """Does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


_NOOP_SPAN = _NoopSpan()


def _prefixed(attributes: Mapping[str, Attribute], **optional: str) -> dict[str, Attribute]:
    all_attributes = {**attributes, **{key: value for key, value in optional.items() if value}}
    return {f"rl.{key}": _plain(value) for key, value in all_attributes.items()}


def _plain(value: Attribute) -> Attribute:
    """Converts names and versions to the built-in type they subclass."""
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    return str(value)


@lru_cache(maxsize=4096)
def _trace_id(run: str, kind: str, key: str) -> int:
    return int.from_bytes(blake2b(f"{run}\0{kind}\0{key}".encode(), digest_size=16).digest(), "big")


def _new_span() -> int:
    return random.getrandbits(64) or 1
