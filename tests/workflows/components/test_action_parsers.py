"""Actions in the texts of policies."""

import pytest

from astraflow.workflows.components.action_parsers import ActionFormat, UnreadableAction, parse_action

TAG, JSON, LINE = ActionFormat.TAG, ActionFormat.JSON, ActionFormat.LAST_LINE


@pytest.mark.parametrize(
    ("form", "text", "action"),
    [
        (TAG, "<action>grep '</think>' log</action>", "grep '</think>' log"),
        (TAG, "<think>so</think> <action>grep '</think>' log</action>", "grep '</think>' log"),
        (TAG, "maybe <action>a</action></think> <action>b</action>", "b"),
        (TAG, "<think>so</think> <action>b</action> after </think>", "b"),
        (JSON, '{"action": "grep </think>"}', "grep </think>"),
        (JSON, 'or {"action": "a"}</think> {"action": "b"}', "b"),
        (JSON, '```json\n{"action": "</think>"}\n```', "</think>"),
        (LINE, "<think>so</think>\nAction: grep '</think>' log", "grep '</think>' log"),
        (LINE, "<think>so</think> go north", "go north"),
        (LINE, "so</think>\ngo north", "go north"),
    ],
)
def test_the_end_of_a_thought_inside_an_action_belongs_to_it(form: ActionFormat, text: str, action: str) -> None:
    assert parse_action(text, form) == action


@pytest.mark.parametrize(
    "text", ["maybe <action>a</action> no</think> I cannot decide", "<think><action>a</action></think>"]
)
def test_an_action_in_a_thought_is_none(text: str) -> None:
    with pytest.raises(UnreadableAction):
        parse_action(text, TAG)
