"""Episodes of a synthetic run with tools, several turns, several policies and sub-agents."""

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.reports.report import SampledTrajectory
from astraflow.contract.rollouts.spans import Author, Ending, Span

MEMBERS = 3
"""Trajectories of an episode: the planner, its sub-agent, and the verifier of the sub-agent's answer."""

ENDINGS = (Ending.WON, Ending.TURNS, Ending.LOST, Ending.WON, Ending.MALFORMED, Ending.DONE)

PAGE = "\n".join(f"{line}. Room {line}: a table, a lamp and {line % 7} books." for line in range(1, 400))
"""A long tool result."""

Part = tuple[str, str]
"""Speaker (`model` for the policy) and text."""


def episode_of(base: SampledTrajectory, policies: tuple[str, ...]) -> Iterator[SampledTrajectory]:
    """Yields the trajectories of the episode that the plain sample stands for; ordinals follow that of `base`."""
    ending = ENDINGS[base.member % len(ENDINGS)]
    is_won = ending in (Ending.WON, Ending.DONE)
    terms = {"correct": float(is_won), "format": 0.5 + 0.1 * (base.member % 5), "length": -0.125}
    labels = {"game": "find the key", "state": "You are in the hall.\nInventory: a key, a lamp."}
    common = replace(
        base, spans=(), text_ends=(), reference_text="", metrics={}, reward_terms=terms, call_outcomes={}, calls=()
    )
    yield _sample(
        replace(common, role="planner", labels=labels, ending=ending, reward=float(is_won)),
        _planner_parts(),
        index=0,
        turn_rewards=(0.0, 0.25, float(is_won) - 0.25),
    )
    yield _sample(
        replace(common, role="searcher", parent=0, parent_turn=1, ending=Ending.DONE, reward=0.5),
        _searcher_parts(),
        index=1,
        turn_rewards=(0.5, 0.0),
    )
    verifier = replace(common, role="verifier", policy=PolicyId(policies[-1]), parent=1, parent_turn=1, reward=1.0)
    yield _sample(replace(verifier, reward_terms={}), _verifier_parts(), index=2)


def _planner_parts() -> list[Part]:
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "where is the key"}}\n</tool_call>'
    thought = "The key may be in one of the rooms. I look for it first, then I open the door. " * 5
    return [
        ("", "You are in a house. Find the key and open the door. Answer with one action for each turn."),
        ("model", f"<think>{thought}</think>\nI search the house.\n{call}"),
        ("tool", PAGE),
        ("model", "The books are in room 13 \u2014 I go there.\n> go to room 13"),
        ("environment", "You are in room 13. There is a key on the table.\nPossible: take key, go to hall"),
        ("model", "> take key\n\u00bfDone? S\u00ed \U0001f511"),
    ]


def _searcher_parts() -> list[Part]:
    call = '<tool_call>{"name": "open", "arguments": {"room": 13}}</tool_call>'
    return [
        ("", "Find the room with the most books."),
        ("model", call),
        ("tool", "6 books"),
        ("model", "Room 13 has 6 books."),
    ]


def _verifier_parts() -> list[Part]:
    return [("", "Is the answer right?"), ("searcher", "Room 13 has 6 books."), ("model", "Yes.")]


def _sample(
    base: SampledTrajectory, parts: list[Part], *, index: int, turn_rewards: tuple[float, ...] = ()
) -> SampledTrajectory:
    """Returns a sample of these parts, whose tokens are words of up to four characters."""
    chance = random.Random(f"{base.task} {index}")
    version = Version(max(0, (base.step or 1) - 1))
    ends = list(accumulate(len(text) for _, text in parts))
    spans, token_ends = [], []
    for (speaker, text), end in zip(parts, ends, strict=True):
        tokens = math.ceil(len(text) / 4)
        if speaker == "model":
            spans.append(Span(author=Author.MODEL, length=tokens, version=version))
            token_ends += [min(end, end - len(text) + 4 * (position + 1)) for position in range(tokens)]
        else:
            spans.append(Span(author=Author.CONTEXT, length=tokens, speaker=speaker))
    first = next(position for position, (speaker, _) in enumerate(parts) if speaker == "model")
    return replace(
        base,
        ordinal=base.ordinal * MEMBERS + index,
        index=index,
        prompt_text="".join(text for _, text in parts[:first]),
        completion_text="".join(text for _, text in parts[first:]),
        spans=tuple(spans),
        text_ends=tuple(ends),
        span_s=tuple(round(chance.uniform(0.2, 4.0), 2) for _ in spans),
        tokens=sum(span.length for span in spans),
        model_tokens=len(token_ends),
        turn_rewards=turn_rewards,
        token_ends=tuple(token_ends),
        logprobs=tuple(-round(chance.expovariate(1.2), 3) for _ in token_ends),
        is_truncated=False,
        failure=None,
    )
