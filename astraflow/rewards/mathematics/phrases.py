"""Words of an answer that is no formula, and the letters of choices."""

import re
from collections.abc import Sequence

from astraflow.rewards.mathematics.forms import Phrase
from astraflow.rewards.mathematics.tokens import Kind, Token

_SYNONYMS = {
    ("dne",): ("does", "not", "exist"), ("no", "solutions"): ("no", "solution"), ("infinite",): ("infinitely", "many"),
    ("infinitely", "many", "solutions"): ("infinitely", "many"),
}  # fmt: skip
_PUNCTUATION = frozenset((",", ";", ".", "{", "}", "-"))
_FILLERS = frozenset(("a", "an", "the", "An", "The", "only", "st", "nd", "rd", "th"))
_FONT = r"\\(?:text|textbf|textrm|mathrm|mathbf)\s*"
_CHOICE = re.compile(rf"{_FONT}\{{\(?([A-J])\)?\}}|\(([A-J])\)|([A-J])")
_CHOSEN = re.compile(
    rf"(?:{_FONT}\{{)?(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s+)?(?:([A-Ja-j])|\(([A-Ja-j])\))[.:)]?(?:\s*\}})?"
    r"((?<=[)}:.])\W.*)?",
    re.DOTALL,
)
_MARKS = re.compile(rf"{_FONT}(?=\{{)|[{{}}()$~\\]")
_CHOICES = re.compile(r"\s*[A-J](?:\s*(?:,|and|,\s*and|)\s*[A-J])+[\s.]*")
_OTHER_CHOICE = re.compile(r"\b[A-J]\b|\bor\b|\bnot\b")
_LABELLED = re.compile(
    rf"(?:{_FONT}\{{\s*\(([A-J])\)\s*\}}|\(([A-J])\)(?=[\s~\\]))(?:[\s~]|\\[ ,;:]|\\q?quad(?![a-z]))*(.+)", re.DOTALL
)


def phrase_of(tokens: Sequence[Token]) -> Phrase:
    """Returns tokens as words: without case where they are words, without articles, commas and grouping."""
    has_words = any(token.kind is Kind.WORD for token in tokens) or all(
        token.kind in (Kind.NUMBER, Kind.LETTER) for token in tokens
    )
    words: list[str] = []
    for token in tokens:
        if token.kind is Kind.NUMBER:
            words.append(str(token.value))
        elif has_words and not _is_filler(token, is_alone=len(tokens) == 1):
            words.append("r" if token.text.casefold() == "remainder" else token.text.casefold())
        elif not has_words:
            words.append(token.text)
    return Phrase(_SYNONYMS.get(tuple(words), tuple(words)))


def _is_filler(token: Token, *, is_alone: bool) -> bool:
    """Returns whether a token says nothing in a phrase: punctuation, an article, the end of an ordinal number."""
    is_word = token.kind is Kind.WORD and not is_alone
    return token.text in _PUNCTUATION or (is_word and token.text in _FILLERS)


def is_same_choice(gold: str, answer: str) -> bool:
    """Returns whether a correct answer that is the letter of a choice is chosen, with or without its text."""
    choice, chosen = _CHOICE.fullmatch(gold.strip()), _CHOSEN.fullmatch(answer.strip().strip("$"))
    if choice is None or chosen is None or _OTHER_CHOICE.search(chosen[3] or ""):
        return False
    if choice[3]:  # without a mark, the letter of another case is another one
        return choice[3] in (chosen[1], chosen[2])
    return (choice[1] or choice[2]).casefold() == (chosen[1] or chosen[2]).casefold()


def is_same_choices(gold: str, answer: str) -> bool:
    r"""Returns whether the letters of several choices are given, with or without separators.

    >>> is_same_choices("A, C", "AC"), is_same_choices("AC", r"\textbf{(A)} and (C)"), is_same_choices("CA", "A, C")
    (True, True, False)
    """
    wanted, chosen = _letters(gold), _letters(answer)
    is_list = "," in gold or "and" in gold or wanted == sorted(wanted)
    return len(wanted) > 1 and is_list and len(set(wanted)) == len(wanted) and sorted(wanted) == sorted(chosen)


def _letters(text: str) -> list[str]:
    """Returns the letters of several choices; none for another text."""
    stripped = _MARKS.sub(" ", text)
    return list(re.sub(r"\band\b|\W", "", stripped)) if _CHOICES.fullmatch(stripped) else []


def labelled_choice(text: str) -> tuple[str, str]:
    r"""Returns the letter of a choice and its text; no letter and all of the text for another answer.

    >>> labelled_choice(r"\textbf{(C)}\ 12"), labelled_choice("12"), labelled_choice("(C)")
    (('C', '12'), ('', '12'), ('', '(C)'))
    """
    match = _LABELLED.fullmatch(text.strip().strip("$"))
    return (match[1] or match[2], match[3]) if match else ("", text)
