"""The view of one trajectory: turns, folded blocks, tokens, the tree of its episode, and hostile texts."""

import math
import time
from dataclasses import replace
from typing import Any

import pytest

from astraflow.contract.ids import Version
from astraflow.contract.reports.report import SampledTrajectory
from astraflow.contract.rollouts.spans import Author, Ending, Span
from tests.fakes.synthetic_interactions import PAGE
from tests.fakes.synthetic_run import SyntheticRun
from web.components.texts import ALL_CHARS, BLOCK_CHARS, PAGE_CHARS
from web.trajectories.conversations import Conversation, conversation
from web.trajectories.episodes import MAX_DEPTH, episode_tree
from web.trajectories.filters import EndFilter
from web.trajectories.turns import MAX_BLOCKS, NO_TEXT, TOKENS_PER_PAGE, TURNS_SHOWN, Block

CONTEXT, MODEL = Author.CONTEXT, Author.MODEL


def episode() -> list[SampledTrajectory]:
    """Returns planner, searcher and verifier of one task."""
    samples = SyntheticRun(has_interactions=True, policies=("solver", "judge")).samples(150)
    task = samples[-1].task
    return sorted((sample for sample in samples if sample.task == task), key=lambda sample: sample.ordinal)[:3]


def written(*parts: tuple[str, str], **changes: Any) -> SampledTrajectory:
    """Returns a sample of these texts, each with its speaker (`model` for the policy), one token for each character of
    the policy."""
    spans, ends, end = [], [], 0
    token_ends: list[int] = []
    for speaker, text in parts:
        is_model = speaker == "model"
        if is_model:
            token_ends += range(end + 1, end + len(text) + 1)
        end += len(text)
        ends.append(end)
        author = MODEL if is_model else CONTEXT
        version = Version(4) if is_model else None
        spans.append(Span(author=author, length=len(text), version=version, speaker="" if is_model else speaker))
    sample = replace(
        episode()[0],
        prompt_text="",
        completion_text="".join(text for _, text in parts),
        spans=tuple(spans),
        text_ends=tuple(ends),
        token_ends=tuple(token_ends),
        logprobs=(-0.5,) * len(token_ends),
        model_tokens=len(token_ends),
        span_s=(),
        turn_rewards=(),
    )
    return replace(sample, **changes)


def blocks_of(view: Conversation, turn: int) -> list[Block]:
    return [block for piece in view.turns[turn].pieces for block in piece.blocks]


def test_turns_have_their_speaker_their_reward_and_folded_blocks() -> None:
    view = conversation(episode()[0], {})
    assert [turn.kind for turn in view.turns] == ["prompt", "model", "tool", "model", "environment", "model"]
    assert [turn.reward for turn in view.turns if turn.is_model][:2] == ["0.00", "0.25"]
    assert [turn.reward for turn in view.turns if not turn.is_model] == ["", "", ""]
    assert [(block.kind, block.is_open) for block in blocks_of(view, 1)] == [
        ("reasoning", False),
        ("text", True),
        ("call", True),
    ]
    assert "search" in blocks_of(view, 1)[2].title
    (result,) = blocks_of(view, 2)
    assert (result.kind, result.is_open, result.hidden) == ("result", False, len(PAGE) - BLOCK_CHARS)
    assert result.title in PAGE
    assert view.is_cut
    assert (view.ending, view.ending_tone) == ("won", "good")
    assert [fact.label for fact in view.terms] == ["correct", "format", "length"]
    assert ([fact.label for fact in view.labels], "hall" in view.state) == (["game"], True)


def test_all_texts_are_shown_on_request() -> None:
    view = conversation(episode()[0], {}, is_complete=True)
    assert blocks_of(view, 2)[0].text == PAGE
    assert not view.is_cut


def test_the_text_of_another_policy_has_its_role_as_speaker() -> None:
    view = conversation(episode()[2], {})
    assert [turn.kind for turn in view.turns] == ["prompt", "other", "model"]
    assert "searcher" in view.turns[1].speaker
    assert (view.name, view.role, view.ending) == ("verifier", "verifier", "")


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("plain", ["text"]),
        ("", ["text"]),
        ("<think>a</think>", ["reasoning"]),
        ("<think>never closed", ["reasoning"]),
        ("x<tool_call>{</tool_call>y", ["text", "call", "text"]),
        ("<tool_call>[1]</tool_call>", ["call"]),
        ("<tool_call>" + "[" * 5000 + "</tool_call>", ["call"]),
        ("<tool_call>search(a=1)</tool_call>", ["call"]),
        ("<think></think>" * 1000, ["reasoning"] * MAX_BLOCKS + ["text"]),
    ],
)
def test_any_answer_is_divided_into_blocks(text: str, kinds: list[str]) -> None:
    view = conversation(written(("", "p"), ("model", text)), {})
    blocks = [block for turn in view.turns for piece in turn.pieces for block in piece.blocks][1:]
    assert [block.kind for block in blocks] == kinds


def test_tokens_have_text_level_and_logprob() -> None:
    sample = written(("", "ask"), ("model", "a\nb"), ("tool", "t"), ("model", "cd"))
    ends = (4, 5, 6, 7, 9)
    logprobs = (0.0, -1.0, -20.0, math.nan, -0.3)
    view = conversation(replace(sample, token_ends=ends, logprobs=logprobs), {}, first_token=0)
    assert view.tokens is not None
    assert (view.tokens.begin, view.tokens.end, view.tokens.previous, view.tokens.following) == (0, 5, None, None)
    tokens = [token for turn in view.turns for piece in turn.pieces for token in piece.token_list]
    assert [token.level for token in tokens] == ["0", "2", "5", "", "1"]
    assert [token.logprob for token in tokens] == [0.0, -1.0, -20.0, None, -0.3]
    assert [token.text for token in tokens[::2]] == ["a", "b", "cd"]
    assert (tokens[1].text[-1:], tokens[3].text) == ("\n", NO_TEXT)
    assert [block.text for block in blocks_of(view, 2)] == ["t"], "what the policy read stays text"


def test_tokens_are_paged() -> None:
    sample = written(("", "ask"), ("model", "x" * (TOKENS_PER_PAGE + 5)))
    view = conversation(sample, {}, first_token=TOKENS_PER_PAGE + 1)
    assert view.tokens is not None
    page = (view.tokens.begin, view.tokens.end, view.tokens.previous, view.tokens.following)
    assert page == (TOKENS_PER_PAGE, TOKENS_PER_PAGE + 5, 0, None)
    assert len(view.turns[1].pieces[0].token_list) == 5
    first = conversation(sample, {}, first_token=0)
    assert first.tokens is not None
    assert (first.tokens.following, len(first.turns[1].pieces[0].token_list)) == (TOKENS_PER_PAGE, TOKENS_PER_PAGE)


@pytest.mark.parametrize(
    "changes", [{"token_ends": ()}, {"logprobs": (-1.0,)}, {"token_ends": (1,), "logprobs": (-1.0,)}]
)
def test_a_sample_without_fitting_tokens_has_only_the_text_view(changes: dict[str, Any]) -> None:
    view = conversation(replace(written(("", "p"), ("model", "abc")), **changes), {}, first_token=0)
    assert (view.has_tokens, view.tokens) == (False, None)
    assert [block.text for block in blocks_of(view, 1)] == ["abc"]


def test_ends_that_go_back_do_not_repeat_the_text() -> None:
    sample = written(("", "p"), *[("model", "ab"), ("tool", "x")] * 500)
    whole = len(sample.completion_text)
    back_and_forth = tuple(0 if index % 2 else whole for index in range(len(sample.text_ends)))
    token_ends = tuple(0 if index % 2 else whole for index in range(sample.model_tokens))
    hostile = replace(sample, text_ends=back_and_forth, token_ends=token_ends)
    for first_token in (None, 0):
        view = conversation(hostile, {}, first_token=first_token, is_complete=True)
        shown = sum(len(block.text) for turn in view.turns for piece in turn.pieces for block in piece.blocks)
        tokens = (token for turn in view.turns for piece in turn.pieces for token in piece.token_list)
        assert shown + sum(len(token.text) for token in tokens if token.text != NO_TEXT) <= whole


HUGE = "<b>\u202e\x00\x1b[31m" * 1_300_000
"""Ten megabytes."""


@pytest.mark.long
def test_huge_hostile_texts_are_cut_and_visible() -> None:
    sample = written(("", HUGE), ("model", HUGE), ("tool", HUGE), labels={"state": HUGE[:4000], "\u202ex": "\x07"})
    began = time.process_time()
    views = [conversation(replace(sample, token_ends=()), {}, is_complete=is_complete) for is_complete in (False, True)]
    assert time.process_time() - began < 20, "linear, not quadratic"
    for view, most in zip(views, (PAGE_CHARS, ALL_CHARS), strict=True):
        texts = [block.text for turn in view.turns for piece in turn.pieces for block in piece.blocks]
        texts += [view.state, *(text for fact in view.labels for text in (fact.label, fact.value))]
        assert view.is_cut
        assert sum(map(len, texts)) < 3 * most
        assert not any(letter in text for text in texts for letter in "\x00\x1b\x07\u202e")


def test_a_flood_of_turns_is_cut() -> None:
    view = conversation(written(("", "p"), *[("model", "ab"), ("tool", "x")] * 1000), {})
    assert (len(view.turns), view.hidden_turns, view.is_cut) == (TURNS_SHOWN, 2001 - TURNS_SHOWN, True)


def test_the_tree_of_an_episode_has_parents_before_their_children() -> None:
    planner, searcher, verifier = episode()
    second = replace(searcher, index=3, ordinal=99, parent=0, parent_turn=None, failure=None)
    tree = episode_tree([second, verifier, searcher, planner], verifier.ordinal)
    assert [(member.name, member.depth, member.is_shown) for member in tree] == [
        ("planner", 0, False),
        ("searcher (2)", 1, False),
        ("verifier", 2, True),
        ("searcher (4)", 1, False),
    ]
    assert [bool(member.started) for member in tree] == [False, True, True, True]
    assert tree[2].policy == "judge"


def test_a_branch_shows_which_tokens_another_trajectory_trains() -> None:
    parts = (("", "prompt"), ("model", "<tool_call>{}</tool_call>"), ("tool", "result"), ("model", "done"))
    main = written(*parts, index=0, ordinal=1, role="agent", tokens=41, parent=None)
    shared = [("policy" if speaker == "model" else speaker, text) for speaker, text in parts[:2]]
    branch = written(*shared, ("user", "no"), ("model", "ok"), index=1, ordinal=2, role="agent", parent=0, tokens=35)
    branch = replace(branch, parent_turn=0)
    root, leaf = episode_tree([main, branch], 2)

    assert [segment.kind for segment in root.segments] == ["read", "model", "read", "model"]
    assert [segment.kind for segment in leaf.segments] == ["read", "shared", "read", "model"]
    assert root.segments[-1].begin + root.segments[-1].width == pytest.approx(1000)
    assert leaf.segments[-1].begin + leaf.segments[-1].width == pytest.approx(1000 * 35 / 41)
    assert leaf.started == "branches from agent (1) in turn 1"
    assert leaf.tokens == "2 tokens trained here, 25 in another trajectory"
    view = conversation(branch, {})
    assert [(turn.kind, turn.number) for turn in view.turns] == [
        ("prompt", 1),
        ("shared", 1),
        ("environment", 1),
        ("model", 1),
    ]
    assert [block.kind for piece in view.turns[1].pieces for block in piece.blocks] == ["call"]


def test_a_member_without_its_parent_is_a_root_and_depth_is_bounded() -> None:
    planner, searcher, _ = episode()
    (orphan,) = episode_tree([searcher], searcher.ordinal)
    assert (orphan.depth, orphan.started) == (0, "")
    itself = replace(searcher, parent=searcher.index)
    assert [member.depth for member in episode_tree([itself], 1)] == [0]
    chain = [replace(planner, index=index, ordinal=index, parent=index - 1 if index else None) for index in range(200)]
    assert max(member.depth for member in episode_tree(chain, 0)) == MAX_DEPTH
    assert len(episode_tree(chain, 0)) == 200


def test_every_ending_can_be_filtered() -> None:
    assert {end.of_interaction for end in EndFilter} == {*Ending, None}
