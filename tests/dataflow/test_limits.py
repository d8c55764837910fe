"""A result beyond a limit becomes a failure with its cause; everything else stays as it is."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.rollouts.failures import Boundary
from astraflow.contract.rollouts.generation import Finish, Generation, VersionSpan
from astraflow.contract.rollouts.limits import MAX_TRAJECTORIES, EpisodeBounds, RowLimits
from astraflow.contract.rollouts.partial_rollouts import RecordedGeneration
from astraflow.contract.rollouts.recording import Mixture
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.token_columns import TokenColumn, TokenColumns
from astraflow.contract.rollouts.trajectories import Episode, Trajectories, Trajectory
from astraflow.dataflow.admission.limits import (
    EXTRA_TOKENS,
    Refusal,
    ResultLimits,
    are_within,
    checked,
    generation_defect,
    reward_defect,
)
from tests import make

SOLVER = PolicyId("solver")
MIXTURE = Mixture(layers=4, chosen=1, experts=4)
ROW = {SOLVER: RowLimits(vocabulary=100, tokens=200, mixture=MIXTURE)}
WRITTEN = Span(author=Author.MODEL, length=5, version=Version(0))
LIMITS = ResultLimits(
    policies=frozenset({SOLVER}),
    reward_range=(-1.0, 2.0),
    max_tokens=1000,
    bounds=EpisodeBounds(trajectories=2, tokens=80, written=10),
)


def trajectory(**changes: Any) -> Trajectory:
    """Returns a trajectory of 3 context tokens and 5 written ones."""
    return replace(make.trajectory(), **changes)


def shaped(context: int, written: int) -> Trajectory:
    """Returns a trajectory with so many tokens of context, then of the policy; all ids are 0."""
    return trajectory(
        tokens=np.zeros(context + written, np.int32),
        logprobs=np.full(written, -0.5, np.float32),
        spans=(Span(author=Author.CONTEXT, length=context), replace(WRITTEN, length=written)),
    )


def ids(last: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array([0, 1, 2, 3, 4, 5, 6, last], np.int32)


def candidates(last: int) -> TokenColumns:
    tokens = np.array([[0], [1], [2], [3], [last]], "<i4")
    return {TokenColumn.TOP_TOKENS: tokens, TokenColumn.TOP_LOGPROBS: np.full((5, 1), -1, "<f2")}


def kept(other: int) -> TokenColumns:
    return {TokenColumn.SUPPORT: np.array([[token, other] for token in trajectory().tokens[-5:]], "<i4")}


def experts(last: int, *, width: int = 2, tokens: int = 5) -> TokenColumns:
    column = np.zeros((tokens, width), np.uint8)
    column[-1, -1] = last
    return {TokenColumn.EXPERTS: column}


def logprobs(last: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array([-0.5, 0.0, -999.0, 9e-4, last], np.float32)


def limit_of(*trajectories: Trajectory, limits: ResultLimits = LIMITS) -> str | None:
    """Returns the limit that an episode breaks, by the check of episodes; the check of whole pushes must agree."""
    episode = replace(make.episode(), trajectories=trajectories)
    result = checked(episode, limits, rows=ROW)
    is_within = are_within([Trajectories.of(trajectories)], [limits], ROW)
    if result.failure is None:
        assert result is episode
        assert is_within
        return None
    assert isinstance(result.failure, Refusal)
    assert result.failure.is_retried
    assert not result.trajectories
    assert not is_within or result.failure.limit == "trajectories", "the number is compared by its caller"
    return result.failure.limit


CASES: list[tuple[str | None, tuple[Trajectory, ...]]] = [
    (None, (trajectory(),)),
    (None, (trajectory(), trajectory())),
    ("trajectories", (trajectory(),) * 3),
    ("policy", (trajectory(policy=PolicyId("judge")),)),
    (None, (trajectory(tokens=ids(99)),)),
    ("token_id", (trajectory(tokens=ids(100)),)),
    ("token_id", (trajectory(tokens=ids(2**31 - 1)),)),
    ("token_id", (trajectory(tokens=ids(-1)),)),
    ("token_id", (trajectory(token_columns=candidates(100)),)),
    ("token_id", (trajectory(token_columns=kept(100)),)),
    ("token_id", (trajectory(tokens=ids(-(2**31))),)),
    (None, (trajectory(token_columns=experts(3)), trajectory())),
    (None, (trajectory(token_columns=experts(255)),)),
    ("experts", (trajectory(), trajectory(token_columns=experts(7, width=3)))),
    ("experts", (trajectory(token_columns=experts(0, width=1)),)),
    ("experts", (trajectory(token_columns=experts(0, width=3)),)),
    ("token_id", (trajectory(), trajectory(tokens=ids(100)))),
    (None, (shaped(80 + EXTRA_TOKENS - 10, 10),)),
    ("tokens", (shaped(81 + EXTRA_TOKENS - 10, 10),)),
    (None, (shaped(3, 10 + EXTRA_TOKENS),)),
    ("written_tokens", (shaped(3, 11 + EXTRA_TOKENS),)),
    ("no_context", (trajectory(spans=(WRITTEN, Span(author=Author.CONTEXT, length=3))),)),
    (None, (trajectory(logprobs=logprobs(-0.1)),)),
    ("logprob", (trajectory(logprobs=logprobs(-3e38)),)),
    ("logprob", (trajectory(logprobs=logprobs(-1e4)),)),
    ("logprob", (trajectory(logprobs=logprobs(0.5)),)),
    ("logprob", (trajectory(logprobs=logprobs(float("nan"))),)),
    ("logprob", (trajectory(logprobs=logprobs(float("-inf"))),)),
    (None, (trajectory(reward=2.0),)),
    ("reward", (trajectory(reward=2.1),)),
    ("reward", (trajectory(), trajectory(reward=-1.1))),
    (None, (trajectory(turn_rewards=(3.0,)),)),
    (None, (trajectory(turn_rewards=(-3.0,)),)),
    ("turn_reward", (trajectory(turn_rewards=(3.1,)),)),
    ("turn_reward", (trajectory(turn_rewards=(9e8,)),)),
    (None, (trajectory(reward_terms={"length": 4096.0}),)),
    ("reward_term", (trajectory(reward_terms={"length": 1e15}),)),
    ("reward_term", (trajectory(reward_terms={"length": float("nan")}),)),
    (None, (trajectory(metrics={"bytes": 1e12}),)),
    ("metric", (trajectory(metrics={"bytes": 1e17}),)),
    ("metric", (trajectory(metrics={"bytes": float("inf")}),)),
    (None, (trajectory(prompt_text="a", completion_text="b", text_ends=(1, 2), token_ends=(1, 1, 1, 2, 2)),)),
    ("text", (trajectory(prompt_text="a", completion_text="b", text_ends=(1, 99)),)),
    ("text", (trajectory(prompt_text="a", completion_text="b", text_ends=(1,)),)),
    ("text", (trajectory(prompt_text="a", completion_text="b", token_ends=(1,)),)),
    ("text", (trajectory(prompt_text="x" * 5_000_000),)),
    ("text", (trajectory(answer="x" * 5_000_000),)),
]


@pytest.mark.parametrize(("limit", "trajectories"), CASES, ids=[str(limit) for limit, _ in CASES])
def test_a_result_is_refused_with_the_limit_that_it_breaks(
    limit: str | None, trajectories: tuple[Trajectory, ...]
) -> None:
    assert limit_of(*trajectories) == limit


def test_the_sum_of_turn_rewards_is_bounded_too() -> None:
    """A hundred turns of the largest reward would outweigh a reward that is in its range."""
    spans = (
        Span(author=Author.CONTEXT, length=3),
        *(replace(WRITTEN, length=1), Span(author=Author.CONTEXT, length=1)) * 5,
    )
    turns = trajectory(tokens=np.zeros(13, np.int32), spans=spans)

    assert limit_of(replace(turns, turn_rewards=(2.0, -2.0, 2.0, -2.0, 2.0))) is None
    assert limit_of(replace(turns, turn_rewards=(2.0, 2.0, 0.0, 0.0, 0.0))) == "turn_reward"


@pytest.mark.parametrize(
    ("limit", "boundary"),
    [("token_id", Boundary.ENGINE), ("reward", Boundary.REWARD), ("policy", Boundary.WORKFLOW)],
)
def test_the_failure_names_the_component_that_made_the_result(limit: str, boundary: Boundary) -> None:
    (trajectories,) = [case for name, case in CASES if name == limit][:1]
    failure = checked(replace(make.episode(), trajectories=trajectories), LIMITS, rows=ROW).failure
    assert failure is not None
    assert failure.boundary is boundary


def test_without_statements_of_trainer_and_workflow_the_limits_of_the_flow_hold() -> None:
    own = ResultLimits(reward_range=(-1.0, 2.0), max_tokens=300)
    long = replace(shaped(296, 5), tokens=np.full(301, 10**6, np.int32))
    fitting = replace(shaped(295, 5), tokens=np.full(300, 10**6, np.int32))

    def limit(*trajectories: Trajectory) -> str | None:
        failure = checked(replace(make.episode(), trajectories=trajectories), own).failure
        return failure.limit if isinstance(failure, Refusal) else None

    assert limit(fitting) is None
    assert limit(long) == "tokens"
    assert limit(*[trajectory()] * MAX_TRAJECTORIES) is None
    assert limit(*[trajectory()] * (MAX_TRAJECTORIES + 1)) == "trajectories"


def test_the_texts_of_a_prompt_count_among_the_tokens_of_its_trajectories() -> None:
    limits = replace(LIMITS, bounds=EpisodeBounds(written=10, context=20))
    episode = replace(make.episode(), trajectories=(shaped(190, 5),))
    prompt = make.prompt()

    assert checked(episode, limits, prompt=replace(prompt, fields={"question": "x" * 100})) is episode
    assert checked(episode, limits, prompt=replace(prompt, fields={"question": "é?"})).failure is not None


def test_rewards_after_a_group_reward_are_held_to_the_same_ranges() -> None:
    assert reward_defect(trajectory(turn_rewards=(3.0,)), LIMITS) is None
    defects = (reward_defect(trajectory(reward=3.0), LIMITS), reward_defect(trajectory(turn_rewards=(4.0,)), LIMITS))
    assert [defect and defect.limit for defect in defects] == ["reward", "turn_reward"]


def recorded(
    tokens: int = 4,
    *,
    last: int = 1,
    logprob: float = -0.5,
    request: bytes = b"digest",
    columns: TokenColumns | None = None,
) -> RecordedGeneration:
    generation = Generation(
        tokens=np.array([1] * (tokens - 1) + [last], np.int32),
        logprobs=np.full(tokens, logprob, np.float32),
        spans=(VersionSpan(version=Version(0), length=tokens),),
        finish=Finish.ABORT,
        columns=columns or {},
    )
    return RecordedGeneration(policy=SOLVER, request=request, generation=generation)


@pytest.mark.parametrize(
    ("limit", "generation"),
    [
        (None, recorded()),
        (None, recorded(200)),
        ("tokens", recorded(201)),
        ("token_id", recorded(last=100)),
        ("token_id", recorded(last=-1)),
        ("logprob", recorded(logprob=0.5)),
        ("logprob", recorded(logprob=-1e4)),
        ("request", recorded(request=b"x" * 1000)),
        (None, recorded(columns=experts(3, tokens=4))),
        ("experts", recorded(columns=experts(4, width=3, tokens=4))),
    ],
)
def test_handed_back_tokens_are_held_to_the_limits_of_results(
    limit: str | None, generation: RecordedGeneration
) -> None:
    defect = generation_defect(generation, limits=LIMITS, row=ROW[SOLVER])
    assert (defect.limit if defect else None) == limit


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    """Returns an episode with numbers on both sides of every limit."""
    context, written = draw(st.integers(0, 150)), draw(st.integers(1, 90))
    spans = [Span(author=Author.CONTEXT, length=context)] if context else []
    tokens = np.array(draw(st.lists(st.integers(-2, 101), min_size=1, max_size=4)), np.int32)
    values = draw(
        st.lists(st.sampled_from([-1e38, -1001.0, -1000.0, -1.0, 0.0, 1e-4, 0.01, np.nan]), min_size=1, max_size=4)
    )
    return replace(
        make.episode(),
        trajectories=tuple(
            trajectory(
                tokens=np.resize(tokens, context + written),
                logprobs=np.resize(np.array(values, np.float32), written),
                spans=(*spans, replace(WRITTEN, length=written)),
                reward=draw(st.floats(-2, 3)),
                turn_rewards=draw(st.sampled_from([(), (3.0,), (4.0,)])),
                metrics={"m": draw(st.floats(allow_nan=True, allow_infinity=True))},
            )
            for _ in range(draw(st.integers(1, 3)))
        ),
    )


@given(episodes())
def test_an_episode_is_within_all_limits_or_a_failure_with_a_cause(episode: Episode) -> None:
    result = checked(episode, LIMITS, rows=ROW)
    if result is not episode:
        assert isinstance(result.failure, Refusal)
        assert result.failure.limit
        assert result.failure.message
        assert not result.trajectories
        return
    assert len(result.trajectories) <= 2
    for item in result.trajectories:
        assert ((item.tokens >= 0) & (item.tokens < 100)).all()
        assert ((item.logprobs >= -1000) & (item.logprobs <= 1e-3)).all()
        assert len(item.tokens) <= 80 + EXTRA_TOKENS
        assert item.model_tokens <= 10 + EXTRA_TOKENS
        assert item.spans[0].author is Author.CONTEXT
        assert -1 <= item.reward <= 2
        assert all(abs(value) <= 3 for value in item.turn_rewards)
        assert all(abs(value) <= 1e12 for value in item.metrics.values())
