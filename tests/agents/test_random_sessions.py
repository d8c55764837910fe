"""Property of sessions: every trajectory is what the engine read and wrote, and each sampled token is trained once."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from astraflow.agents.session_limits import SessionOptions
from astraflow.contract.rollouts.spans import Author
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.workflows.scripted.policies import EpisodeRecord, Request
from tests.agents.dialect_clients import DIALECTS
from tests.agents.random_sessions import RandomSession, random_session
from tests.fakes.chat_templates import CHATML, SMOLLM2, tokenizer

pytestmark = pytest.mark.anyio

TOKENIZERS: dict[str, Callable[[], ChatTokenizer]] = {
    "bytes": ByteTokenizer,
    "characters": lambda: tokenizer(SMOLLM2, "characters"),
    "qwen": lambda: tokenizer(CHATML),
}
ACTIONS = {
    "branch", "sub-agent", "edit", "compact", "inject", "retry", "join", "leave", "again", "agent.limit",
}  # fmt: skip


def generations(trajectory: Trajectory, record: EpisodeRecord) -> list[tuple[int, int]]:
    """Returns the number of each request whose generation the trajectory trains, and where it begins; checks that the
    engine read exactly what is before it, and wrote exactly this."""
    by_number = {_number(request): request for request in record.requests}
    numbers = np.round(-trajectory.logprobs * 1024).astype(int) - 1
    places = np.flatnonzero(trajectory.loss_mask())
    drawn = []
    position = 0
    while position < len(numbers):
        number, begin = int(numbers[position]), int(places[position])
        request = by_number[number]
        size = len(request.generation.tokens)
        assert numbers[position : position + size].tolist() == [number] * size
        assert trajectory.tokens[:begin].tolist() == request.prompt.tolist()
        assert trajectory.tokens[begin : begin + size].tolist() == request.generation.tokens.tolist()
        drawn.append((number, begin))
        position += size
    return drawn


def check(agents: RandomSession, record: EpisodeRecord, *, keeps: bool) -> int:
    """Checks a session; returns the number of calls that continued a reply."""
    trajectories = agents.session.trajectories(1.0, calls=agents.records)
    by_number = {_number(request): request for request in record.requests}
    trained: Counter[int] = Counter()
    of_reply: dict[str, int] = {}
    for index, trajectory in enumerate(trajectories):
        own = generations(trajectory, record)
        trained.update(number for number, _ in own)
        leaf = by_number[own[-1][0]]
        assert len(trajectory.tokens) == len(leaf.prompt) + len(leaf.generation.tokens)
        assert trajectory.spans[-1].author is Author.MODEL
        assert trajectory.parent is None or trajectory.parent < index
        if trajectory.parent is not None:
            shared = generations(trajectories[trajectory.parent], record)[trajectory.parent_turn or 0][0]
            request = by_number[shared]
            size = len(request.prompt) + len(request.generation.tokens)
            assert trajectory.tokens[:size].tolist() == trajectories[trajectory.parent].tokens[:size].tolist()
        for agent_call in trajectory.calls:
            if agent_call.turn is not None and trajectory.turns == len(own):
                of_reply[agent_call.request] = own[agent_call.turn][0]
    assert all(count == 1 for count in trained.values())
    metrics = trajectories[0].metrics
    dropped = int(metrics["superseded_replies"])
    assert len(trained) == agents.session.usage.turns - agents.session.usage.taken_back - dropped
    assert not keeps or dropped == 0
    links = [(before, after) for before, after in agents.links if before in of_reply and after in of_reply]
    for before, after in links:
        first, second = by_number[of_reply[before]], by_number[of_reply[after]]
        known = [*first.prompt.tolist(), *first.generation.tokens.tolist()]
        assert second.prompt[: len(known)].tolist() == known, "a sampled token was encoded again"
    return len(links)


def _number(request: Request) -> int:
    return round(-float(request.generation.logprobs[0]) * 1024) - 1


async def _run(kind: str, seeds: range, dialect: str = "") -> Counter[str]:
    chat_tokenizer = TOKENIZERS[kind]()
    done: Counter[str] = Counter()
    for seed in seeds:
        keeps = seed % 3 == 0
        options = SessionOptions(
            max_new_tokens=60,
            max_context=3000 if kind == "bytes" else 1500,
            max_turns=60 if seed % 5 else 6,
            superseded="keep" if keeps else "drop",
        )
        agents, record = await random_session(seed, chat_tokenizer, options, dialect)
        done["continued"] += check(agents, record, keeps=keeps)
        done += agents.done
        done["replies"] += agents.session.usage.turns
    return done


@pytest.mark.parametrize("kind", TOKENIZERS)
async def test_random_sessions_train_what_was_sampled_once(kind: str) -> None:
    done = await _run(kind, range(34))
    assert done.keys() >= ACTIONS and done["replies"] > 300 and done["continued"] > 100


@pytest.mark.long
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_random_sessions_in_a_dialect_train_what_was_sampled_once(dialect: str) -> None:
    done = await _run("characters", range(2000, 2020), dialect)
    assert done.keys() >= ACTIONS and done["replies"] > 150 and done["continued"] > 50


@pytest.mark.long
@pytest.mark.parametrize("kind", TOKENIZERS)
async def test_a_thousand_random_sessions_train_what_was_sampled_once(kind: str) -> None:
    await _run(kind, range(1000, 1334))


@pytest.mark.long
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_thousand_random_sessions_in_a_dialect_train_what_was_sampled_once(dialect: str) -> None:
    await _run("qwen", range(3000, 4000), dialect)
