"""Parsers of tool calls read each form of call, and no text makes them raise."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.tools.base import Tool
from astraflow.tools.call_parsers import call_spans, closing_strings, ends_inside_call, parse_calls, thought_end
from astraflow.tools.calls import MAX_CALL_CHARACTERS, CallFormat, ToolCall, UnreadableCall


async def never(arguments: Any) -> str:
    raise AssertionError("a parser called a tool")


def tool(name: str, **types: str) -> Tool:
    properties: Any = {parameter: {"type": kind} for parameter, kind in types.items()}
    return Tool(name=name, description="", parameters={"type": "object", "properties": properties}, call=never)


TOOLS = (tool("search", query="string"), tool("access", page="integer"), tool("add", a="number", b="number"))


def parsed(text: str, form: str) -> list[tuple[str, Any] | None]:
    """Returns name and arguments of each call; None for an unreadable one."""
    calls = parse_calls(text, CallFormat(form), TOOLS)
    return [(call.name, dict(call.arguments)) if isinstance(call, ToolCall) else None for call in calls]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("no call", []),
        ('<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2.5}}\n</tool_call>', [("add", {"a": 1, "b": 2.5})]),
        (
            'two: <tool_call>{"name": "x"}</tool_call> <tool_call>{"name": "y", "arguments": {}}</tool_call>',
            [("x", {}), ("y", {})],
        ),
        ('<think><tool_call>{"name": "x"}</tool_call></think> done', []),
        ('<tool_call>{"name": "x"}', [None]),
        ("<tool_call></tool_call>", [None]),
        ('<tool_call>{"name": 1, "arguments": {}}</tool_call>', [None]),
        ('<tool_call>{"name": "x", "arguments": []}</tool_call>', [None]),
        ('<tool_call>["x"]</tool_call>', [None]),
        ('<tool_call>{"name": "x", "arguments": {"a": NaN}}</tool_call>', [None]),
        ('<tool_call>{"name": "x", "arguments": {"a": "\\ud800"}}</tool_call>', [None]),
        ('<tool_call>{"name": "x", "arguments": {"a": 1' + "0" * 5000 + "}}</tool_call>", [None]),
        ("<tool_call>" + "[" * 50_000 + "</tool_call>", [None]),
        ("<tool_call>" + " " * MAX_CALL_CHARACTERS + "{}</tool_call>", [None]),
        ('</tool_call><tool_call>{"name": "x"}</tool_call>', [("x", {})]),
        ('{"name": "x"}</tool_call>', [None]),
        ('<tool_call>{"name": "x", "parameters": {"a": 1}}</tool_call>', [None]),
        ('<tool_call>{"name": "x", "arguments": {"a": 1e999}}</tool_call>', [None]),
        ('<tool_call>{"name": "x", "arguments": {"a": -1e999}}</tool_call>', [None]),
        ('<tool_call>{"name": "x", "arguments": {"a": 1, "a": 2}}</tool_call>', [None]),
        ('<tool_call>{"name": "x"}{"name": "y"}</tool_call>', [None]),
        ('<TOOL_CALL>{"name": "x"}', [None]),
        ('<tool_call >{"name": "x"}</tool_call>', [None]),
        ('<tool_call>{"name": "x"}\n<tool_call>{"name": "y"}</tool_call>', [None, ("y", {})]),
        ('<tool_call>{"name": "x", "arguments": {"a": "\n<tool_call>{"name": "y"}</tool_call>\n"}}', [None]),
        ('<think>a</think><tool_call>{"name": "x"}</tool_call> I closed </think> before', [("x", {})]),
        (
            '<think>a</think><tool_call>{"name": "x"}</tool_call><think><tool_call>{"name": "y"}</tool_call></think>b',
            [("x", {})],
        ),
        ('<think>I write <tool_call> now.</think><tool_call>{"name": "x"}</tool_call>', [("x", {})]),
        ('<think><tool_call>{"name": "x", "arguments": {"a": "</think>"}}</tool_call></think>done', []),
        ('<think>as <tool_call>{"name": "x</think><tool_call>{"name": "y"}</tool_call>', [("y", {})]),
        ('<tool_call>{"name": "x"}</tool_call></think>', [None]),
        ('<think><tool_call>{"name": "x"}</tool_call></think>\n', [None]),
        ('a thought <tool_call>{"name": "x"}</tool_call></think> The answer', []),
    ],
)
def test_hermes_calls(text: str, calls: list[Any]) -> None:
    assert parsed(text, "hermes") == calls


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("no call <other>x</other>", []),
        ("<search> who wrote it </search>", [("search", {"query": "who wrote it"})]),
        ("<search>a</search><search>b</search>", [("search", {"query": "a"}), ("search", {"query": "b"})]),
        ("<search><access>1</access></search>", [("search", {"query": "<access>1</access>"})]),
        ("<access>3</access>", [("access", {"page": 3})]),
        ("<access>three</access>", [None]),
        ("<add>1</add>", [None]),
        ("<search>never ends", [None]),
        ("<search>a</search> <search>b", [("search", {"query": "a"}), None]),
        ("</search><search>", [None]),
        ("the end </search>", [None]),
        ("<search>echo '</search>' done</search>", [None]),
        ("<search>a</search> <search>echo '</search>'</search>", [("search", {"query": "a"}), None]),
        ("<search>grep '</think>'</search>", [("search", {"query": "grep '</think>'"})]),
        ("<search>grep '<search>'</search>", [("search", {"query": "grep '<search>'"})]),
        ('<search lang="en">a</search>', [None]),
        ("<SEARCH>a</SEARCH>", [None, None]),
        ("<search/>", [None]),
        ("<access>1e999</access>", [None]),
        ("<access>1</access> 2</access>", [("access", {"page": 1})]),
        ("<think><search>a</search></think>done", []),
        ("<think>I use <search> now.</think> <search>a</search>", [("search", {"query": "a"})]),
        ("I use <search> now.</think> <search>a</search>", [("search", {"query": "a"})]),
        ("<think>I close </search> now.</think> <search>a</search>", [("search", {"query": "a"})]),
        ("<think>so</think> <search>a</search> <think>or <search> b</think> done", [("search", {"query": "a"})]),
    ],
)
def test_calls_by_tags(text: str, calls: list[Any]) -> None:
    assert parsed(text, "xml") == calls


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("print(1)", []),
        ("```python\nadd(a=1, b=2)\n```", []),
        ("First:\n```tool_code\nadd(a=1, b=-2)\n```", [("add", {"a": 1, "b": -2})]),
        ("[add(1, b=2), search('x')]", [("add", {"a": 1, "b": 2}), ("search", {"query": "x"})]),
        (
            "```tool_code\nsearch(query='a')\nsearch(query='b')\n```",
            [("search", {"query": "a"}), ("search", {"query": "b"})],
        ),
        ("```tool_code\nunknown(a=(1, {'b': None}))\n```", [("unknown", {"a": [1, {"b": None}]})]),
        ("```tool_code\nadd(a=1)", [None]),
        ("```tool_code\nimport os\n```", [None]),
        ("```tool_code\nos.system('x')\n```", [None]),
        ("```tool_code\nadd(a=open('x'))\n```", [None]),
        ("```tool_code\nadd(a=1e999)\n```", [None]),
        ("```tool_code\nadd(a=b'x')\n```", [None]),
        ("```tool_code\nadd(a={1: 2})\n```", [None]),
        ("```tool_code\nadd(a='\\ud800')\n```", [None]),
        ("```tool_code\nadd(1, 2, 3)\n```", [None]),
        ("```tool_code\nadd(1, a=2)\n```", [None]),
        ("```tool_code\nadd(**{'a': 1})\n```", [None]),
        ("```tool_code\nadd(a='\\d')\n```", [("add", {"a": "\\d"})]),
        ("```tool_code\n\x00\n```", [None]),
        ("[" * 5000 + "]" * 5000, [None]),
        ("```tool_code\nadd(a=" + "-" * 30_000 + "1)\n```", [None]),
        ("```tool_code\r\nadd(a=1, b=2)\r\n```", [("add", {"a": 1, "b": 2})]),
        ("```tool_code \t\nadd(a=1, b=2)\n```", [("add", {"a": 1, "b": 2})]),
        ("```tool_code\nsearch(query='''\n```\nx\n```\n''')\n```", [("search", {"query": "\n```\nx\n```\n"})]),
        ("```tool_code\nsearch(query='```')  # it's\n```", [("search", {"query": "```"})]),
        ("```tool_code\nsearch(query='</think>')\n```", [("search", {"query": "</think>"})]),
        ("<think>```tool_code\nsearch(query='x')\n```</think>done", []),
        ("```tool_code add(a=1, b=2)```", [None]),
        ("```TOOL_CODE\nadd(a=1, b=2)\n```", [None]),
        ("```tool_code\nadd(a=1, b=2)\n```tool_code\nadd(a=3, b=4)\n```", [None, ("add", {"a": 3, "b": 4})]),
        ("```tool_code\n```", [None]),
        ("[1, 2, 3]", []),
        ("[1]", []),
        ("[]", []),
        ("[sqrt(2), Rational(1, 2)]", []),
        ("[see page 3]", []),
        ("[x for x in range(3)]", []),
        ("<think>so</think> [1, 2]", []),
        ("<think>so</think> [add(a=1, b=2)]", [("add", {"a": 1, "b": 2})]),
        ("[search(query='</think>')]", [("search", {"query": "</think>"})]),
        ("[add(a=1, b=2]", [None]),
        ("[tools.add(a=1, b=2)]", [None]),
        ("[find(query='x')]", [("find", {"query": "x"})]),
        ("<think>a block ```tool_code\nadd(</think> ```tool_code\nadd(a=1, b=2)\n```", [("add", {"a": 1, "b": 2})]),
        ("[add(a=1, b=2), 3]", [("add", {"a": 1, "b": 2}), None]),
        ("```tool_code\n" + "x" * (MAX_CALL_CHARACTERS + 1) + "```", [None]),
    ],
)
def test_python_calls(text: str, calls: list[Any]) -> None:
    assert parsed(text, "python") == calls


def test_closing_strings_end_a_call() -> None:
    assert closing_strings(CallFormat.HERMES, TOOLS) == ("</tool_call>",)
    assert closing_strings(CallFormat.XML, TOOLS) == ("</search>", "</access>", "</add>")
    assert closing_strings(CallFormat.PYTHON, TOOLS) == ()


@pytest.mark.parametrize(
    "value", ["</tool_call>", "<tool_call>", "</think>", "<think>", "}}</tool_call>\n", "{", "```"]
)
def test_what_stands_in_a_text_of_a_call_belongs_to_the_text(value: str) -> None:
    call = json.dumps({"name": "search", "arguments": {"query": f"echo {value} {value}"}})
    python = f"```tool_code\nsearch(query={f'echo {value} {value}'!r})\n```"

    for text, form in ((f"<tool_call>\n{call}\n</tool_call>", "hermes"), (python, "python")):
        assert (
            parsed(f"<think>a</think>{text} and {text}", form) == [("search", {"query": f"echo {value} {value}"})] * 2
        )


@pytest.mark.parametrize(
    ("text", "is_inside"),
    [
        ('<tool_call>{"name": "x", "arguments": {"a": "</tool_call>', True),
        ('<tool_call>{"name": "x", "arguments": {"a": "b"}}</tool_call>', False),
        ('<tool_call>{"name": "x"}</tool_call><tool_call>{"name": "x</tool_call>', True),
        ('<tool_call>{"name": "x\n</tool_call>', False),  # no JSON text has a line break
        ("<tool_call>{'name': 'x</tool_call>", False),
        ("no call</tool_call>", False),
    ],
)
def test_a_closing_string_inside_a_text_does_not_end_the_call(text: str, *, is_inside: bool) -> None:
    assert ends_inside_call(text, CallFormat.HERMES, TOOLS) is is_inside


def test_calls_have_their_places_in_a_text_after_a_thought() -> None:
    text = 'a <tool_call>{"name": "x"}</tool_call> b </think>'

    assert [text[span.begin : span.end] for span in call_spans(text, CallFormat.HERMES, ())] == [text[2:38]]
    assert (thought_end(text), thought_end(text[:40])) == (text.index("</think>"), -1)


_HOSTILE = st.lists(
    st.sampled_from(
        [
            "<tool_call>", "</tool_call>", "<search>", "</search>", "<access>", "</access>", "```tool_code\n", "```",
            "[", "]", "{", "}", "(", ")", '"', "'", "\\", "\n", "\x00", "\ud800", "search", "add", "=", ",", "1",
            '{"name": "add", "arguments": {}}', "</think>", "lambda: 0", "é", "<|im_end|>",
        ]
    )
    | st.text(max_size=5),
    max_size=40,
).map("".join)  # fmt: skip


@pytest.mark.long
@given(text=_HOSTILE, form=st.sampled_from(CallFormat))
def test_no_text_raises_and_calls_hold_json(text: str, form: CallFormat) -> None:
    for call in parse_calls(text, form, TOOLS):
        if isinstance(call, UnreadableCall):
            assert call.problem.isprintable()
        else:
            assert all(isinstance(name, str) for name in call.arguments)


@pytest.mark.parametrize("form", CallFormat)
@pytest.mark.parametrize(
    "piece",
    [
        "<tool_call>", "<search>", "</search>", "<access>", "```tool_code\n", "[", "add(", '{"name":', "</think>",
        '<tool_call>{"a": "', "<tool_call>{", "```tool_code\n'''", '<access>"', "<think>", "[\"'",
    ],
)  # fmt: skip
def test_a_long_text_of_anything_is_parsed(form: CallFormat, piece: str) -> None:
    """Takes many minutes with a parser whose time is not linear in the text."""
    text = piece * (2**18 // len(piece))

    assert all(isinstance(call, UnreadableCall | ToolCall) for call in parse_calls(text, form, TOOLS))


@pytest.mark.long
def test_a_flood_of_calls_is_parsed_as_a_whole() -> None:
    text = '<tool_call>{"name": "add", "arguments": {}}</tool_call>' * 20_000

    assert len(parse_calls(text, CallFormat.HERMES, TOOLS)) == 20_000
