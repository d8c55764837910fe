"""Brackets of an answer: what is inside them, and the parts outside them."""

import re
from collections.abc import Callable, Sequence

from astraflow.rewards.mathematics.forms import Permutation
from astraflow.rewards.mathematics.tokens import Token

OPENING = frozenset(("(", "[", "{", "\\{", "langle", "begin", "lfloor", "lceil"))
CLOSING = frozenset((")", "]", "}", "\\}", "rangle", "end", "rfloor", "rceil"))
_CYCLES = re.compile(r"(?:\(\s*\d+(?:[\s,]+\d+)*\s*\)\s*)+")


def without_group(tokens: list[Token]) -> list[Token]:
    """Returns tokens without braces around all of them."""
    while len(tokens) > 1 and tokens[0].text == "{" and close_of(tokens) == len(tokens) - 1:
        tokens = tokens[1:-1]
    return tokens


def close_of(tokens: list[Token]) -> int | None:
    """Returns the place of the bracket that closes the first one."""
    depth = 0
    for at, token in enumerate(tokens):
        depth += (token.text in OPENING) - (token.text in CLOSING)
        if depth == 0:
            if token.text == "end":  # its name follows
                return next((later for later in range(at, len(tokens)) if tokens[later].text == "}"), None)
            return at
    return None


def split(tokens: Sequence[Token], is_separator: Callable[[Token], bool]) -> tuple[list[list[Token]], list[str]]:
    """Returns the parts between separators outside brackets, and the texts of the separators."""
    parts: list[list[Token]] = [[]]
    separators: list[str] = []
    depth = 0
    for token in tokens:
        depth += (token.text in OPENING) - (token.text in CLOSING)
        if depth == 0 and token.text not in CLOSING and is_separator(token):
            parts.append([])
            separators.append(token.text.casefold())
        else:
            parts[-1].append(token)
    return parts, separators


def permutation_of(text: str) -> Permutation | None:
    """Returns the permutation that disjoint cycles such as (1 2 3)(4 5) form, None for another text."""
    if not _CYCLES.fullmatch(text) or not re.search(r"\d\s+\d", text) or "," in text:
        return None
    images: dict[int, int] = {}
    for cycle in re.findall(r"\(([^)]*)\)", text):
        members = [int(member) for member in cycle.split()]
        if len(set(members)) != len(members) or not images.keys().isdisjoint(members):
            return None
        images |= dict(zip(members, [*members[1:], members[0]], strict=True))
    return Permutation({member: image for member, image in images.items() if member != image})
