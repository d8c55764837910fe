"""Strategies for every contract dataclass, derived from its fields, so that new fields are covered at once."""

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cache
from itertools import groupby
from types import UnionType
from typing import Any, TypeVar

import numpy as np
import xxhash
from hypothesis import strategies as st

from astraflow.contract.fleet.instances import LaunchId
from astraflow.contract.fleet.plans import Actor, PlanRequest, Role
from astraflow.contract.fleet.pools import PoolSpec
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.fleet.run_changes import RUN, RunAction, RunChange
from astraflow.contract.ids import MAX_VERSION, Name, PolicyId, Version
from astraflow.contract.node_metrics import NODE_COUNTERS, NODE_GAUGES
from astraflow.contract.nodes import NodeStatus
from astraflow.contract.plugins import PluginSlot
from astraflow.contract.reports.queries import (
    MAX_BINS,
    EventQuery,
    GroupQuery,
    RewardQuery,
    SampleIndexQuery,
    TrajectoryQuery,
)
from astraflow.contract.reports.report import SampledTrajectory
from astraflow.contract.reports.training_steps import TrainingStepQuery
from astraflow.contract.rollouts.agent_calls import AgentCall
from astraflow.contract.rollouts.failures import Failure
from astraflow.contract.rollouts.generation import Generation, VersionSpan
from astraflow.contract.rollouts.limits import MAX_ABS_REWARD
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.tasks import Lease, Task
from astraflow.contract.rollouts.timelines import Hop
from astraflow.contract.rollouts.token_columns import TokenColumn, TokenColumns
from astraflow.contract.rollouts.trajectories import Episode, Trajectory
from astraflow.contract.values import Json
from astraflow.contract.weight_reports import LinkReport
from astraflow.contract.weights import Chunk, Manifest, Probe, TensorSpec, Transfer, TransferKind
from astraflow.wire.request_limits import MAX_NUMBER

T = TypeVar("T")

names = st.text("aZ9._:/-", max_size=6).map(lambda rest: f"n{rest}")
_optional_names = st.just("") | names
doubles = st.floats(-MAX_NUMBER, MAX_NUMBER)
counts = st.integers(0, 2**32 - 1)
big_counts = st.integers(0, 2**64 - 1)
ordinals = st.integers(0, 2**63 - 1)
hashes = st.binary(min_size=32, max_size=32)
signatures = st.just(b"") | st.binary(min_size=64, max_size=64)
texts = st.text(max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
json_objects = st.dictionaries(texts, json_values, max_size=3)
finite = st.floats(allow_nan=False, allow_infinity=False)
_UNIONS = (typing.Union, UnionType)


@cache
def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Returns values of an annotation: a contract dataclass, id, enum, plain type, or a container of them. Cached,
    because hypothesis validates and analyses each new strategy, which takes longer than drawing from it."""
    if kind in _SPECIAL:
        special: st.SearchStrategy[Any] = _SPECIAL[kind]()
        return special
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in _UNIONS:
        return st.one_of(*(values_of(argument) for argument in arguments))
    if origin in (tuple, Sequence):
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is Mapping:
        return json_objects if arguments[1] is Json else st.dictionaries(*map(values_of, arguments), max_size=3)
    if issubclass(kind, Name):
        return names.map(kind)
    return st.sampled_from(kind) if issubclass(kind, Enum) else built(kind)


def built(type_: type, /, **overrides: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Returns values of a dataclass; `overrides` replaces fields with rules that their types do not express."""
    return st.builds(type_, **_derived(type_, frozenset(overrides)), **overrides)


def drawn(draw: st.DrawFn, type_: type[T], /, **overrides: Any) -> T:
    """Draws a value of a dataclass; `overrides` has the values of fields with rules."""
    kind: Any = type_  # mypy finds no hash of a generic type
    return type_(**draw(_other_fields(kind, frozenset(overrides))), **overrides)


@cache
def _other_fields(type_: type, excluded: frozenset[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(_derived(type_, excluded))


def _derived(type_: type, excluded: frozenset[str]) -> dict[str, st.SearchStrategy[Any]]:
    """Returns the strategies of all fields that are not given."""
    hints = typing.get_type_hints(type_)
    names_of_fields = (field.name for field in dataclasses.fields(type_) if field.init)
    return {name: values_of(hints[name]) for name in names_of_fields if name not in excluded}


def same(left: Any, right: Any) -> bool:
    """Compares values, including arrays."""
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    if dataclasses.is_dataclass(left):
        return type(left) is type(right) and all(
            same(getattr(left, field.name), getattr(right, field.name)) for field in dataclasses.fields(left)
        )
    if isinstance(left, Mapping) and any(isinstance(value, np.ndarray) for value in left.values()):
        return left.keys() == right.keys() and all(same(value, right[key]) for key, value in left.items())
    if isinstance(left, tuple):
        return isinstance(right, tuple) and len(left) == len(right) and all(map(same, left, right))
    return bool(left == right) and type(left) is type(right)


def _spans() -> st.SearchStrategy[Any]:
    lengths = st.integers(1, 5)
    model = st.builds(Span, author=st.just(Author.MODEL), length=lengths, version=values_of(Version))
    return model | st.builds(Span, author=st.just(Author.CONTEXT), length=lengths, speaker=st.just("") | names)


@cache
def per_turn(values: st.SearchStrategy[float], turns: int) -> st.SearchStrategy[tuple[float, ...]]:
    return st.just(()) | st.lists(values, min_size=turns, max_size=turns).map(tuple)


_REWARDS = st.floats(-MAX_ABS_REWARD, MAX_ABS_REWARD)
_DISCOUNTS = st.floats(0, 1)


@st.composite
def token_columns(draw: st.DrawFn, sampled: np.ndarray[Any, Any]) -> TokenColumns:
    """Draws valid columns of the sampled tokens: the most likely ones, kept sets, temperatures, experts."""
    width = draw(st.integers(1, 3))
    tokens = len(sampled)
    size = tokens * width
    columns: dict[TokenColumn, Any] = {}
    if draw(st.booleans()):
        ids = draw(st.lists(st.integers(-1, 2**31 - 1), min_size=size, max_size=size))
        logprobs = draw(st.lists(st.floats(max_value=-2, width=16, allow_nan=False), min_size=size, max_size=size))
        columns[TokenColumn.TOP_TOKENS] = np.array(ids, "<i4").reshape(tokens, width)
        columns[TokenColumn.TOP_LOGPROBS] = np.array(logprobs, "<f2").reshape(tokens, width)
    if draw(st.booleans()):
        ids = draw(st.lists(st.integers(0, 2**31 - 1), min_size=size, max_size=size))
        columns[TokenColumn.SUPPORT] = np.array(ids, "<i4").reshape(tokens, width)
        columns[TokenColumn.SUPPORT][:, 0] = sampled
    if draw(st.booleans()):
        temperatures = draw(st.lists(st.floats(0, 2, width=32), min_size=tokens, max_size=tokens))
        columns[TokenColumn.TEMPERATURE] = np.array(temperatures, "<f4").reshape(tokens, 1)
    if draw(st.booleans()):
        experts = draw(st.binary(min_size=size, max_size=size))
        columns[TokenColumn.EXPERTS] = np.frombuffer(experts, np.uint8).reshape(tokens, width)
    return columns


def _is_written(spans: tuple[Span, ...]) -> list[bool]:
    return [span.version is not None for span in spans for _ in range(span.length)]


@st.composite
def _trajectories(draw: st.DrawFn) -> Trajectory:
    spans = tuple(draw(st.lists(values_of(Span), max_size=4)))
    written = sum(span.length for span in spans if span.version is not None)
    tokens = draw(st.lists(st.integers(0, 2**31 - 1), min_size=(n := sum(s.length for s in spans)), max_size=n))
    logprobs = draw(
        st.lists(st.floats(max_value=0, allow_infinity=False, width=32), min_size=written, max_size=written)
    )
    turns = sum(author is Author.MODEL for author, _ in groupby(spans, key=lambda span: span.author))
    return drawn(
        draw,
        Trajectory,
        parent=None,
        role=draw(_optional_names),
        turn_rewards=draw(per_turn(_REWARDS, turns)),
        turn_discounts=draw(per_turn(_DISCOUNTS, turns)),
        tokens=(ids := np.array(tokens, dtype=np.int32)),
        logprobs=np.array(logprobs, dtype=np.float32),
        token_columns=draw(token_columns(ids[_is_written(spans)])),
        spans=spans,
        reward=draw(_REWARDS),
    )


@st.composite
def _episodes(draw: st.DrawFn) -> Episode:
    failure = draw(values_of(Failure | None))
    roots = draw(st.lists(values_of(Trajectory), min_size=failure is None, max_size=2))
    children = [replace(roots[0], parent=index) for index in range(draw(st.integers(0, len(roots))))]
    return drawn(draw, Episode, failure=failure, trajectories=(*roots, *children))


@cache
def _version_spans() -> st.SearchStrategy[VersionSpan]:
    return built(VersionSpan, length=st.integers(1, 5))


@st.composite
def _generations(draw: st.DrawFn) -> Generation:
    spans = tuple(draw(st.lists(_version_spans(), max_size=3)))
    length = sum(span.length for span in spans)
    tokens = draw(st.lists(st.integers(0, 2**31 - 1), min_size=length, max_size=length))
    logprobs = draw(st.lists(st.floats(max_value=0, allow_infinity=False, width=32), min_size=length, max_size=length))
    return drawn(
        draw,
        Generation,
        tokens=(ids := np.array(tokens, dtype=np.int32)),
        logprobs=np.array(logprobs, dtype=np.float32),
        spans=spans,
        columns=draw(token_columns(ids)),
        drafted=(drafted := draw(st.integers(0, 2**31))),
        accepted=draw(st.integers(0, drafted)),
    )


@st.composite
def _leases(draw: st.DrawFn) -> Lease:
    tasks: list[Task] = draw(st.lists(values_of(Task), max_size=5))
    prompts = {task.group: task.prompt for task in tasks}
    members = tuple(dataclasses.replace(task, prompt=prompts[task.group]) for task in tasks)
    return Lease(tasks=members, lease_s=draw(doubles))


@st.composite
def _probes(draw: st.DrawFn) -> Probe:
    lengths = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    scored_from = tuple(draw(st.integers(0, length)) for length in lengths)
    scored = sum(lengths) - sum(scored_from)
    return Probe(
        tokens=draw(st.binary(min_size=4 * sum(lengths), max_size=4 * sum(lengths))),
        lengths=lengths,
        scored_from=scored_from,
        logprobs=draw(st.binary(min_size=4 * scored, max_size=4 * scored)),
    )


@st.composite
def _transfers(draw: st.DrawFn) -> Transfer:
    kind = draw(st.sampled_from(TransferKind))
    base = draw(values_of(Version)) if kind is TransferKind.DELTA else None
    return drawn(draw, Transfer, kind=kind, base=base, hash=draw(hashes))


_STEPS = st.none() | ordinals
_LIMITS = st.integers(1, 2**32 - 1)


@cache
def _ordered(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    """Returns two bounds, either of which may be missing."""
    pairs = st.tuples(st.none() | values, st.none() | values)
    return pairs.map(lambda pair: pair if None in pair else (min(pair), max(pair)))


@st.composite
def _trajectory_queries(draw: st.DrawFn) -> TrajectoryQuery:
    first_step, last_step = draw(_ordered(ordinals))
    min_reward, max_reward = draw(_ordered(finite))
    before, after = draw(st.sampled_from([(draw(ordinals), None), (None, draw(ordinals)), (None, None)]))
    term = draw(_optional_names)
    min_term, max_term = draw(_ordered(finite)) if term else (None, None)
    return drawn(
        draw,
        TrajectoryQuery,
        step=draw(_STEPS),
        first_step=first_step,
        last_step=last_step,
        min_reward=min_reward,
        max_reward=max_reward,
        term=term,
        min_term=min_term,
        max_term=max_term,
        before=before,
        after=after,
        limit=draw(_LIMITS),
    )


@st.composite
def _group_queries(draw: st.DrawFn) -> GroupQuery:
    first_step, last_step = draw(_ordered(ordinals))
    return drawn(
        draw,
        GroupQuery,
        step=draw(_STEPS),
        first_step=first_step,
        last_step=last_step,
        before=draw(_STEPS),
        limit=draw(_LIMITS),
    )


def _event_queries() -> st.SearchStrategy[EventQuery]:
    return built(EventQuery, before=_STEPS, limit=_LIMITS)


def _chunks() -> st.SearchStrategy[Chunk]:
    return st.builds(
        lambda offset, data: Chunk(offset=offset, data=data, checksum=xxhash.xxh3_64_intdigest(data)),
        big_counts,
        st.binary(max_size=50),
    )


def _actors() -> st.SearchStrategy[Actor]:
    return st.builds(Actor, name=names, role=st.sampled_from(Role))


_USD = st.floats(0, 1e9)
_MAX_USD = st.none() | _USD


@st.composite
def _pool_specs(draw: st.DrawFn) -> PoolSpec:
    low, high = sorted((draw(counts), draw(counts)))
    mode = draw(values_of(Mode))
    is_automatic = mode in (Mode.UP_ONLY, Mode.ON)
    return drawn(
        draw,
        PoolSpec,
        mode=mode,
        policies=() if is_automatic else draw(values_of(tuple[PolicyId, ...])),
        min_nodes=low,
        max_nodes=high,
        usd_per_hour_max=draw(_MAX_USD),
        usd_per_day_max=draw(_MAX_USD),
        drain_s=draw(_USD),
    )


_LAUNCHES = st.lists(names.map(LaunchId), min_size=1, max_size=3).map(tuple)


@st.composite
def _plan_requests(draw: st.DrawFn) -> PlanRequest:
    if change := draw(st.none() | values_of(RunChange)):
        return drawn(draw, PlanRequest, pool=RUN, target=None, retire=(), run=change, reason=draw(names))
    target = draw(st.none() | st.integers(0, 1_000_000))
    named = draw(_LAUNCHES) if target is None else ()
    return drawn(draw, PlanRequest, target=target, retire=named, run=None, reason=draw(names))


@st.composite
def _run_changes(draw: st.DrawFn) -> RunChange:
    action = draw(st.sampled_from(RunAction))
    is_plugin = action is RunAction.PLUGIN
    return RunChange(
        action=action,
        subject=draw(names) if action is not RunAction.STOP else "",
        slot=draw(st.sampled_from(PluginSlot)) if is_plugin else None,
        kind=draw(names) if is_plugin else "",
        learning_rate=draw(st.floats(1e-9, 1)) if action is RunAction.FORK else None,
    )


def _statuses() -> st.SearchStrategy[NodeStatus]:
    figures = st.dictionaries(st.sampled_from(sorted(NODE_COUNTERS)), doubles, max_size=3)
    gauges = st.dictionaries(st.sampled_from(sorted(NODE_GAUGES)), doubles, max_size=3)
    return built(NodeStatus, counters=figures, gauges=gauges)


_SPECIAL: dict[Any, Any] = {
    bool: st.booleans,
    int: lambda: counts,
    float: lambda: doubles,
    str: lambda: texts,
    bytes: lambda: st.binary(max_size=20),
    type(None): st.none,
    Version: lambda: st.integers(0, MAX_VERSION).map(Version),
    Span: _spans,
    Trajectory: _trajectories,
    Episode: _episodes,
    Generation: _generations,
    Lease: _leases,
    Probe: _probes,
    Transfer: _transfers,
    Chunk: _chunks,
    Actor: _actors,
    PoolSpec: _pool_specs,
    PlanRequest: _plan_requests,
    RunChange: _run_changes,
    TrajectoryQuery: _trajectory_queries,
    SampledTrajectory: lambda: built(
        SampledTrajectory, logprobs=st.lists(st.floats(max_value=0, width=32), max_size=3).map(tuple)
    ),
    GroupQuery: _group_queries,
    RewardQuery: lambda: built(RewardQuery, max_bins=st.integers(1, MAX_BINS)),
    EventQuery: _event_queries,
    SampleIndexQuery: lambda: built(SampleIndexQuery, near=_STEPS, limit=_LIMITS),
    TrainingStepQuery: lambda: built(TrainingStepQuery, limit=_LIMITS),
    TensorSpec: lambda: built(TensorSpec, hash=hashes),
    LinkReport: lambda: built(LinkReport, source=names.map("{}:7000".format)),
    NodeStatus: _statuses,
    AgentCall: lambda: built(AgentCall, dialect=names, model=names),
    Hop: lambda: built(Hop, name=names),
    Manifest: lambda: built(Manifest, root_hash=hashes, signature=signatures),
}
