"""Place in a sequence of tokens, with the ways to read on."""

from astraflow.rewards.mathematics.tokens import Kind, Token, Unreadable

CLOSING = {"(": ")", "[": "]", "{": "}"}
"""Closing bracket of each opening one."""


class Cursor:
    """Reads tokens from left to right."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0

    @property
    def next(self) -> Token | None:
        """The token to read, None at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take_operator(self, *operators: str) -> str:
        """Reads one of the operators; returns it, empty if another token follows."""
        token = self.next
        if token is None or token.kind not in (Kind.MARK, Kind.COMMAND):
            return ""
        text = f"\\{token.text}" if token.kind is Kind.COMMAND else token.text
        if text not in operators:
            return ""
        self.at += 1
        return text.removeprefix("\\")

    def take_mark(self, text: str) -> bool:
        """Reads a mark if it follows; returns whether it did."""
        is_next = self.is_mark(text)
        self.at += is_next
        return is_next

    def take_command(self, name: str) -> bool:
        """Reads a command if it follows; returns whether it did."""
        is_next = self.next is not None and self.next.kind is Kind.COMMAND and self.next.text == name
        self.at += is_next
        return is_next

    def is_mark(self, text: str) -> bool:
        """Returns whether a mark follows."""
        return self.next is not None and self.next.kind is Kind.MARK and self.next.text == text

    def expect(self, text: str) -> None:
        """Reads a mark. Raises: Unreadable when another token follows."""
        if not self.take_mark(text):
            raise Unreadable

    def raw(self) -> str:
        """Reads one token or a group as text: an index or the argument of an unknown function."""
        token = self.next
        if token is None:
            raise Unreadable
        self.at += 1
        if token.kind is not Kind.MARK:
            return token.text
        if token.text not in CLOSING:
            raise Unreadable
        depth, texts = 1, []
        while depth:
            inner = self.next
            if inner is None:
                raise Unreadable
            self.at += 1
            depth += (inner.text in ("(", "{", "[")) - (inner.text in (")", "}", "]"))
            texts.append(inner.text)
        content = " ".join(texts[:-1])
        return f"({content})" if token.text == "(" else content

    def group_tokens(self) -> list[Token]:
        """Reads a group or one token, and returns what is inside."""
        begin = self.at
        if not self.is_mark("{"):
            self.at += 1
            return self.tokens[begin : self.at]
        depth = 0
        while self.at < len(self.tokens):
            text = self.tokens[self.at].text
            self.at += 1
            depth += (text == "{") - (text == "}")
            if depth == 0:
                return self.tokens[begin + 1 : self.at - 1]
        raise Unreadable
