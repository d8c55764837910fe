"""SQL conditions of an archive query; empty criteria are omitted."""

from typing import Any


class Conditions:
    """Parts of a `where` clause, with their values.

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
        """Adds a condition with the value for each `?`; None and empty text are skipped."""
        if value is not None and value != "":
            self.add_all(part, *[value] * part.count("?"))

    def add_all(self, part: str, *values: Any) -> None:
        """Adds a condition with one value for each `?`."""
        self._parts.append(f"({part})")
        self.values += values

    @property
    def text(self) -> str:
        """All conditions joined by `and`."""
        return " and ".join(self._parts) or "true"


def like_pattern(text: str) -> str:
    """Returns the pattern of `like ... escape '|'` for texts that contain this text; empty for an empty text.

    >>> like_pattern("50%")
    '%50|%%'
    """
    if not text:
        return ""
    for special in "|%_":
        text = text.replace(special, f"|{special}")
    return f"%{text}%"
