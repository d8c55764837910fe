"""Strategies for every contract dataclass, derived from its fields, so that new fields are covered at once."""

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from itertools import groupby
from types import UnionType
from typing import Any

import numpy as np
import xxhash
from hypothesis import strategies as st

from astraflow.contract.agent_calls import AgentCall
from astraflow.contract.failures import Failure
from astraflow.contract.fleet import Actor, LaunchId, PlanRequest, PoolSpec, Role
from astraflow.contract.generation import Generation, VersionSpan
from astraflow.contract.ids import MAX_VERSION, Name, PolicyId, Version
from astraflow.contract.nodes import NODE_COUNTERS, NODE_GAUGES, NodeStatus
from astraflow.contract.queries import MAX_BINS, EventQuery, GroupQuery, RewardQuery, TrajectoryQuery
from astraflow.contract.recommendations import Mode
from astraflow.contract.reports import SampledTrajectory
from astraflow.contract.spans import Author, Span
from astraflow.contract.tasks import Lease, Task
from astraflow.contract.trajectories import Episode, Trajectory
from astraflow.contract.values import Json
from astraflow.contract.weight_reports import LinkReport
from astraflow.contract.weights import Chunk, Manifest, Probe, TensorSpec, Transfer, TransferKind
from astraflow.wire.request_limits import MAX_NUMBER, MAX_REWARD

names = st.text("aZ9._:/-", max_size=6).map(lambda rest: f"n{rest}")
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


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Returns values of an annotation: a contract dataclass, id, enum, plain type, or a container of them."""
    if kind in _SPECIAL:
        special: st.SearchStrategy[Any] = _SPECIAL[kind]()
        return special
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in _UNIONS:
        return st.one_of(*(values_of(argument) for argument in arguments))
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is Mapping:
        is_json = typing.get_origin(arguments[1]) in _UNIONS  # the only mappings to a union are those to `Json`
        return json_objects if is_json else st.dictionaries(*map(values_of, arguments), max_size=3)
    if issubclass(kind, Name):
        return names.map(kind)
    return st.sampled_from(kind) if issubclass(kind, Enum) else built(kind)


def built(made: type, /, **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Returns values of a dataclass; `given` overrides fields with rules that their types do not express."""
    hints = typing.get_type_hints(made, localns={"Json": Json})  # recursive; not always imported
    fields = {field.name: hints[field.name] for field in dataclasses.fields(made) if field.init}
    derived = {name: values_of(hint) for name, hint in fields.items() if name not in given}
    return st.builds(made, **derived, **given)


def same(one: Any, other: Any) -> bool:
    """Compares values, including arrays."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if dataclasses.is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one)
        )
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) and type(one) is type(other)


def _spans() -> st.SearchStrategy[Any]:
    lengths = st.integers(1, 5)
    model = st.builds(Span, author=st.just(Author.MODEL), length=lengths, version=values_of(Version))
    return model | st.builds(Span, author=st.just(Author.CONTEXT), length=lengths, speaker=st.just("") | names)


def per_turn(values: st.SearchStrategy[float], turns: int) -> st.SearchStrategy[tuple[float, ...]]:
    return st.just(()) | st.lists(values, min_size=turns, max_size=turns).map(tuple)


@st.composite
def _trajectories(draw: st.DrawFn) -> Trajectory:
    spans = tuple(draw(st.lists(_spans(), max_size=4)))
    written = sum(span.length for span in spans if span.version is not None)
    tokens = draw(st.lists(st.integers(0, 2**31 - 1), min_size=(n := sum(s.length for s in spans)), max_size=n))
    logprobs = draw(
        st.lists(st.floats(max_value=0, allow_infinity=False, width=32), min_size=written, max_size=written)
    )
    turns = sum(author is Author.MODEL for author, _ in groupby(spans, key=lambda span: span.author))
    shell = built(
        Trajectory,
        parent=st.none(),
        role=st.just("") | names,
        turn_rewards=per_turn(st.floats(-MAX_REWARD, MAX_REWARD), turns),
        turn_discounts=per_turn(st.floats(0, 1), turns),
        tokens=st.just(np.array(tokens, dtype=np.int32)),
        logprobs=st.just(np.array(logprobs, dtype=np.float32)),
        spans=st.just(spans),
        reward=st.floats(-MAX_REWARD, MAX_REWARD),
    )
    trajectory: Trajectory = draw(shell)
    return trajectory


@st.composite
def _episodes(draw: st.DrawFn) -> Episode:
    failure = draw(st.none() | values_of(Failure))
    roots = draw(st.lists(_trajectories(), min_size=failure is None, max_size=2))
    children = [replace(roots[0], parent=index) for index in range(draw(st.integers(0, len(roots))))]
    trajectories = st.just((*roots, *children))
    episode: Episode = draw(built(Episode, failure=st.just(failure), trajectories=trajectories))
    return episode


@st.composite
def _generations(draw: st.DrawFn) -> Generation:
    spans = tuple(draw(st.lists(built(VersionSpan, length=st.integers(1, 5)), max_size=3)))
    length = sum(span.length for span in spans)
    tokens = draw(st.lists(st.integers(0, 2**31 - 1), min_size=length, max_size=length))
    logprobs = draw(st.lists(st.floats(max_value=0, allow_infinity=False, width=32), min_size=length, max_size=length))
    shell = built(
        Generation,
        tokens=st.just(np.array(tokens, dtype=np.int32)),
        logprobs=st.just(np.array(logprobs, dtype=np.float32)),
        spans=st.just(spans),
        routes=st.none(),
    )
    generation: Generation = draw(shell)
    return generation


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
    base = values_of(Version) if kind is TransferKind.DELTA else st.none()
    transfer: Transfer = draw(built(Transfer, kind=st.just(kind), base=base, hash=hashes))
    return transfer


def _ordered(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    """Returns two bounds, either of which may be missing."""
    pairs = st.tuples(st.none() | values, st.none() | values)
    return pairs.map(lambda pair: pair if None in pair else (min(pair), max(pair)))


@st.composite
def _trajectory_queries(draw: st.DrawFn) -> TrajectoryQuery:
    first_step, last_step = draw(_ordered(ordinals))
    min_reward, max_reward = draw(_ordered(finite))
    before, after = draw(st.sampled_from([(draw(ordinals), None), (None, draw(ordinals)), (None, None)]))
    term = draw(st.just("") | names)
    min_term, max_term = draw(_ordered(finite)) if term else (None, None)
    query: TrajectoryQuery = draw(
        built(
            TrajectoryQuery,
            step=st.none() | ordinals,
            first_step=st.just(first_step),
            last_step=st.just(last_step),
            min_reward=st.just(min_reward),
            max_reward=st.just(max_reward),
            term=st.just(term),
            min_term=st.just(min_term),
            max_term=st.just(max_term),
            before=st.just(before),
            after=st.just(after),
            limit=st.integers(1, 2**32 - 1),
        )
    )
    return query


@st.composite
def _group_queries(draw: st.DrawFn) -> GroupQuery:
    first_step, last_step = draw(_ordered(ordinals))
    query: GroupQuery = draw(
        built(
            GroupQuery,
            step=st.none() | ordinals,
            first_step=st.just(first_step),
            last_step=st.just(last_step),
            before=st.none() | ordinals,
            limit=st.integers(1, 2**32 - 1),
        )
    )
    return query


def _event_queries() -> st.SearchStrategy[EventQuery]:
    return built(EventQuery, before=st.none() | ordinals, limit=st.integers(1, 2**32 - 1))


def _chunks() -> st.SearchStrategy[Chunk]:
    return st.builds(
        lambda offset, data: Chunk(offset=offset, data=data, checksum=xxhash.xxh3_64_intdigest(data)),
        big_counts,
        st.binary(max_size=50),
    )


def _actors() -> st.SearchStrategy[Actor]:
    return st.builds(Actor, name=names, role=st.sampled_from(Role))


@st.composite
def _pool_specs(draw: st.DrawFn) -> PoolSpec:
    low, high = sorted((draw(counts), draw(counts)))
    usd = st.floats(0, 1e9)
    mode = draw(st.sampled_from(Mode))
    is_automatic = mode in (Mode.UP_ONLY, Mode.ON)
    shell = built(
        PoolSpec,
        mode=st.just(mode),
        policies=st.just(()) if is_automatic else st.lists(names.map(PolicyId), max_size=3).map(tuple),
        min_nodes=st.just(low),
        max_nodes=st.just(high),
        usd_per_hour_max=st.none() | usd,
        usd_per_day_max=st.none() | usd,
        drain_s=usd,
    )
    spec: PoolSpec = draw(shell)
    return spec


@st.composite
def _plan_requests(draw: st.DrawFn) -> PlanRequest:
    target = draw(st.none() | st.integers(0, 1_000_000))
    named = st.lists(names.map(LaunchId), min_size=1, max_size=3).map(tuple) if target is None else st.just(())
    request: PlanRequest = draw(built(PlanRequest, target=st.just(target), retire=named, reason=names))
    return request


def _statuses() -> st.SearchStrategy[NodeStatus]:
    figures = st.dictionaries(st.sampled_from(NODE_COUNTERS), doubles, max_size=3)
    gauges = st.dictionaries(st.sampled_from(NODE_GAUGES), doubles, max_size=3)
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
    TrajectoryQuery: _trajectory_queries,
    SampledTrajectory: lambda: built(
        SampledTrajectory, logprobs=st.lists(st.floats(max_value=0, width=32), max_size=3).map(tuple)
    ),
    GroupQuery: _group_queries,
    RewardQuery: lambda: built(RewardQuery, max_bins=st.integers(1, MAX_BINS)),
    EventQuery: _event_queries,
    TensorSpec: lambda: built(TensorSpec, hash=hashes),
    LinkReport: lambda: built(LinkReport, source=names.map("{}:7000".format)),
    NodeStatus: _statuses,
    AgentCall: lambda: built(AgentCall, dialect=names, model=names),
    Manifest: lambda: built(Manifest, root_hash=hashes, signature=signatures),
}
