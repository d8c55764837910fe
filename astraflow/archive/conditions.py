"""Conditions of a question to the archive, as SQL: what was not asked for is left out."""

from typing import Any


class Conditions:
    """Parts of a `where`, with their values.

    >>> conditions = Conditions()
    >>> conditions.add("step >= ?", 3)
    >>> conditions.add("node = ?", "")
    >>> conditions.text, conditions.values
    ('(step >= ?)', [3])
    """

    def __init__(self) -> None:
        self._parts: list[str] = []
        self.values: list[Any] = []

    def add(self, part: str, value: Any) -> None:
        """A condition on a value, once for each `?`, unless there is none: None, or an empty text."""
        if value is not None and value != "":
            self._parts.append(f"({part})")
            self.values += [value] * part.count("?")

    @property
    def text(self) -> str:
        """All of them together."""
        return " and ".join(self._parts) or "true"


def containing(text: str) -> str:
    """The pattern of `like ... escape '|'` for texts that contain this one; empty for the empty one.

    >>> containing("50%")
    '%50|%%'
    """
    if not text:
        return ""
    for special in "|%_":
        text = text.replace(special, f"|{special}")
    return f"%{text}%"
