"""Fenced blocks of Python in a completion."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from astraflow.rewards.base import outside_thoughts

_MIN_CHARACTERS = 20
"""Shorter blocks are examples of a call, of input or of output where there is a longer one."""
_LINE_END = re.compile(r"\r\n|\r|\n")
_FENCE = re.compile(r"(?P<indent>(?:[ \t>]|[-*+][ \t]|\d{1,9}[.)][ \t])*)(?P<fence>`{3,}|~{3,})(?P<info>.*)", re.DOTALL)
_AFTER_TEXT = re.compile(
    r"[^`]*[^`\s][ \t]*(?P<indent>)(?P<fence>`{3,})(?P<info>[ \t]*(?:python|py)[\d.]*[ \t]*)", re.IGNORECASE
)
"""Labelled fence behind a text, such as `Code:` or `<answer>`, which is none in Markdown."""
_LANGUAGE = re.compile(r"[\s{.]*([\w+#]*)")
_PYTHON = re.compile(r"(?:python|py)[\d.]*", re.IGNORECASE)
_STRING_OR_COMMENT = re.compile(r"\"\"\"|'''|\"(?:\\.|[^\"\\\n])*\"?|'(?:\\.|[^'\\\n])*'?|#[^\n]*")
_STATEMENT = re.compile(r"^[ \t]*(?:import|from|def|class|for|while|if|with|try|print\s*\(|\w+\s*=[^=])", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    language: str
    lines: list[str]
    is_closed: bool

    @property
    def code(self) -> str:
        return "\n".join(self.lines)

    @property
    def is_python(self) -> bool:
        return _PYTHON.fullmatch(self.language) is not None


def last_python_block(text: str, *, function: str = "") -> str:
    """Returns the solution in a completion: its last complete block that is labelled as Python, outside of thoughts;
    empty without one.

    function: that the tests call; a block that defines it, or a class `Solution`, is preferred to one that does not.
    Blocks without a label count where none is labelled, those that look like code first. Blocks of less than 20
    characters count where there is no longer one, and a block without an end where none is complete.

    >>> last_python_block("```python\\nprint('the solution')\\n```\\nIt prints:\\n```\\nthe solution\\n```")
    "print('the solution')"
    """
    blocks = [block for block in _blocks(_LINE_END.split(outside_thoughts(text))) if block.code.strip()]
    labelled = [block for block in blocks if block.is_python]
    candidates = labelled or [block for block in blocks if not block.language]
    definition = re.compile(rf"^\s*(?:(?:async\s+)?def\s+{re.escape(function)}\b|class\s+Solution\b)", re.MULTILINE)

    def preference(index: int) -> tuple[bool, bool, bool, bool, int]:
        block = candidates[index]
        is_definition = bool(function) and definition.search(block.code) is not None
        is_code = bool(labelled) or _STATEMENT.search(block.code) is not None
        return block.is_closed, is_definition, is_code, len(block.code.strip()) >= _MIN_CHARACTERS, index

    return candidates[max(range(len(candidates)), key=preference)].code if candidates else ""


def _blocks(lines: list[str]) -> Iterator[_Block]:
    """Yields the fenced blocks of a text in Markdown.

    Fences may be in lists and quotes, and a labelled one behind a text. A fence inside a string of Python with three
    quotes, such as a docstring, is part of the code if the string ends; a labelled fence elsewhere in a block begins
    another one.
    """
    index = 0
    while index < len(lines):
        opening = _opening(lines[index]) or _AFTER_TEXT.fullmatch(lines[index])
        index += 1
        if opening is None:
            continue
        language, end = _language(opening), _end(lines, index, opening, has_strings=True)
        if end is None:
            end = _end(lines, index, opening, has_strings=False)
        closing = _opening(lines[end]) if end is not None else None
        is_closed = closing is not None and not _language(closing)
        content = [_dedented(line, opening["indent"]) for line in lines[index:end]]
        yield _Block(language=language, lines=content, is_closed=is_closed)
        index = len(lines) if end is None else end + is_closed


def _opening(line: str) -> re.Match[str] | None:
    """Returns the fence of a line; None without one, also where backticks follow it in the same line."""
    fence = _FENCE.fullmatch(line)
    return None if fence is None or (fence["fence"][0] == "`" and "`" in fence["info"]) else fence


def _language(fence: re.Match[str]) -> str:
    label = _LANGUAGE.match(fence["info"])
    return label[1] if label else ""


def _end(lines: list[str], begin: int, opening: re.Match[str], *, has_strings: bool) -> int | None:
    """Returns the index of the line that ends a block: its closing fence, or a labelled one that begins another block.

    has_strings: whether fences in strings with three quotes are part of the block. None: the text ends first.
    """
    quotes = ""
    for index in range(begin, len(lines)):
        fence = None if quotes and has_strings else _opening(lines[index])
        if fence is not None and fence["fence"].startswith(opening["fence"]):
            return index
        quotes = _open_quotes(lines[index], quotes) if has_strings else ""
    return None


def _open_quotes(line: str, quotes: str) -> str:
    """Returns the three quotes of the string that is open after a line of Python; empty without one.

    quotes: those of the string that is open before it.
    """
    position = 0
    while True:
        if quotes:
            end = re.compile(rf"(?:\\.|[^\\])*?{quotes}", re.DOTALL).match(line, position)
            if end is None:
                return quotes
            quotes, position = "", end.end()
        token = _STRING_OR_COMMENT.search(line, position)
        if token is None:
            return ""
        quotes, position = (token[0], token.end()) if token[0] in ('"""', "'''") else ("", token.end())


def _dedented(line: str, indent: str) -> str:
    """Returns a line of a block without the indentation of its fence, which in a list or a quote is no space."""
    blanks = " \t>" if ">" in indent else " \t"
    width = 0
    while width < min(len(indent), len(line)) and line[width] in blanks:
        width += 1
    return line[width:]
