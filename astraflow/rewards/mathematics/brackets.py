"""Brackets of an answer: what is inside them, and the parts outside them."""

from collections.abc import Callable, Sequence

from astraflow.rewards.mathematics.tokens import Token

OPENING = frozenset(("(", "[", "{", "\\{", "langle", "begin", "lfloor", "lceil"))
CLOSING = frozenset((")", "]", "}", "\\}", "rangle", "end", "rfloor", "rceil"))


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
