r"""Extraction of the final answer from a completion: the last box, or the end of a text without one."""

import re

TAIL_CHARS = 2000
"""Length of the end of a completion that is searched for an answer without a box. Characters."""

MAX_EMPTY_BOXES = 20
"""Boxes without content that are passed over at the end of a completion. Count."""

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
_BARE_CONTENT = re.compile(r"\$?([+-]?\d+(?:,\d{3})*(?:\.\d+)?|[A-Za-z](?![A-Za-z]))")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_STATED = re.compile(r"\b(?:answer|result|solution)s?\b[^.\n:=]{0,40}?(?:\bis\b|\bare\b|:|=)[ \t]*:?", re.IGNORECASE)
_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_SENTENCE_END = re.compile(r"[.?;](?=\s|$|\*)|!(?=\s+[A-Z]|\s*$)|\n")
_CLAUSE_END = re.compile(r",?\s+(?:not|which|because|since|where|but|as|so)\b")
_VERB = re.compile(r"(?:\b(?:is|are|equals|be|get|obtain)\b|^)")
_MAX_LINE_CHARS = 200


def last_boxed(text: str) -> str | None:
    r"""Returns the content of the last box; None if there is none or it is not closed.

    >>> last_boxed(r"\boxed{1}, no: \boxed{\frac{1}{2}}."), last_boxed(r"\boxed 9."), last_boxed(r"\boxed{1} \boxed{2")
    ('\\frac{1}{2}', '9', None)
    """
    end = len(text)
    for _ in range(MAX_EMPTY_BOXES):
        begin = max(text.rfind("\\boxed", 0, end), text.rfind("\\fbox", 0, end))
        match = _BOX.match(text, begin) if begin >= 0 else None
        if match is None:
            return None
        if text.startswith("{", match.end()):
            return _group(text, match.end() + 1)
        bare = _BARE_CONTENT.match(text, match.end())
        if bare:
            return bare[1]
        end = begin
    return None


def _group(text: str, begin: int) -> str | None:
    depth = 1
    for brace in _BRACE.finditer(text, begin):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[begin : brace.start()]
    return None


def unboxed(text: str) -> str:
    """Returns what the end of a text without a box states as its answer, empty if it states none.

    >>> unboxed("The answer is 12, not 13."), unboxed("Check: 3! = 6."), unboxed("We have 41 and 42")
    ('12', '3! = 6', '')
    """
    tail = text[-TAIL_CHARS:].strip()
    stated = list(_STATED.finditer(tail))
    if stated:
        return _clause(tail[stated[-1].end() :])
    sentences = [sentence.strip() for sentence in _SENTENCE_END.split(tail) if sentence and sentence.strip()]
    last = sentences[-1] if sentences else ""
    formulas = list(_FORMULA.finditer(last))
    if formulas:
        return _inside(formulas[-1])
    if last == tail.rstrip(".!?;") and len(tail) <= _MAX_LINE_CHARS and not re.search(r"[A-Za-z]{2}.*\d", last):
        return last
    verbs = [verb for verb in _VERB.finditer(last) if verb[0]]
    if verbs:
        return _clause(last[verbs[-1].end() :])
    return last.rpartition(":")[2].strip() if "=" in last else ""


def _clause(text: str) -> str:
    """Returns the text until its sentence ends or goes on with an explanation."""
    text = text.lstrip(" *:\n\t")
    formula = _FORMULA.match(text)
    if formula:
        return _inside(formula)
    end = _SENTENCE_END.search(text)
    text = text[: end.start()] if end else text
    explanation = _CLAUSE_END.search(text)
    return (text[: explanation.start()] if explanation else text).strip().strip("*").strip()


def _inside(formula: re.Match[str]) -> str:
    """Returns a formula without its marks."""
    return str(next(filter(None, formula.groups()))).strip()
