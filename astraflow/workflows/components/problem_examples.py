"""Removal of the examples from the statement of a programming problem, so that a tester cannot copy them."""

import re

_DECORATION = re.compile(r"^[\s#*_=\->:.`\u2013\u2014]+|[\s#*_=\-:.`\u2013\u2014]+$")
_EXAMPLE = re.compile(
    r"(?:(?:example|sample)s?(?:\s+(?:test\s*)?(?:case|input|output|test|i/o|explanation|interaction)s?)*"
    r"(?:\s+and\s+(?:output|explanation)s?)?"
    r"|(?:input|output|test)s?\s+(?:example|sample)s?"
    r"|(?:(?:example|sample)s?\s+)?(?:input|output)s?\s+for\s+(?:the\s+)?(?:example|sample)s?(?:\s+(?:input|output)s?)?)"
    r"(?:\s*[#(]?\d+\)?)?",
    re.IGNORECASE,
)
_EXAMPLE_WITH_TEXT = re.compile(r"(?:example|sample)s?\s*\d*\s*:\s*\S", re.IGNORECASE)
_PART_OF_EXAMPLE = re.compile(
    r"(?:input|output|explanation|note|notes|result|returns?|stdin|stdout)s?(?:\s*\d+)?", re.IGNORECASE
)
_NEXT_SECTION = re.compile(
    r"(?:constraints?|limits?|limitations?|scoring|subtasks?|grading|follow[- ]?up|hints?|(?:your )?task|problem|"
    r"(?:input|output) (?:format|specification|description)|requirements?|rules|definitions?|(?:time|memory) limit|"
    r"description|details|remarks?|restrictions?|background)",
    re.IGNORECASE,
)
_MARKDOWN_HEADING = re.compile(r"\s*(#{1,6})\s")
_DOCTEST = re.compile(r"^\s*>>> ")


def without_examples(statement: str) -> str:
    """Returns the statement without its examples: sections of examples with their notes, and doctests.

    A section of examples begins with its heading, such as `Example 1:`, `-----Examples-----` or `Sample Input`, and
    ends at the heading of another section, such as `Constraints`. Examples in the middle of a sentence stay.

    >>> without_examples("Add two numbers.\\n\\nExample 1:\\nInput: 1 2\\nOutput: 3\\n\\nConstraints:\\na < 10")
    'Add two numbers.\\n\\nConstraints:\\na < 10'
    """
    kept_lines: list[str] = []
    example_level: int | None = None
    for line in _without_doctests(statement.splitlines()):
        if _begins_example(line):
            example_level = _heading_level(line)
        elif example_level is not None and _ends_example(line, example_level):
            example_level = None
        if example_level is None:
            kept_lines.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept_lines)).strip()


def _begins_example(line: str) -> bool:
    title = _title(line)
    return bool(_EXAMPLE.fullmatch(title) or _EXAMPLE_WITH_TEXT.match(title))


def _ends_example(line: str, level: int) -> bool:
    """Returns whether a line is the heading of another section. level: markdown level of the examples, 0 without."""
    title = _title(line)
    if not title:
        return False
    if _NEXT_SECTION.fullmatch(title):
        return True
    if _PART_OF_EXAMPLE.fullmatch(title):
        return False
    own_level = _heading_level(line)
    is_ruled = line.strip().startswith("-----") and line.strip().endswith("-----")
    return is_ruled or (0 < own_level <= level)


def _title(line: str) -> str:
    """Returns a line without the decoration of a heading."""
    title, before = line.strip(), None
    while title != before:
        before, title = title, _DECORATION.sub("", title)
    return title


def _heading_level(line: str) -> int:
    match = _MARKDOWN_HEADING.match(line)
    return len(match[1]) if match else 0


def _without_doctests(lines: list[str]) -> list[str]:
    kept_lines: list[str] = []
    is_in_doctest = False
    for line in lines:
        if _DOCTEST.match(line):
            is_in_doctest = True
        elif is_in_doctest and (not line.strip() or line.strip() in ('"""', "'''", "```")):
            is_in_doctest = False
        if not is_in_doctest:
            kept_lines.append(line)
    return kept_lines
