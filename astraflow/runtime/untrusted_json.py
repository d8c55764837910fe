"""JSON that programs of a policy and other services send, and the answers of HTTP servers that carry it."""

import json
from collections.abc import Mapping
from typing import Any, Final

PLAIN: Final[Mapping[str, str]] = {"Accept-Encoding": "identity"}
"""Header of requests whose answers are not compressed. They are read as they arrive, because a small compressed answer
can fill the memory."""


def parsed_json(content: bytes | bytearray | str, *, limit: int) -> Any:
    """Returns the JSON value in a text of at most `limit` bytes or characters. Raises: ValueError for anything else,
    also for a value that is nested too deeply.

    >>> parsed_json("[1]", limit=10)
    [1]
    """
    if len(content) > limit:
        raise ValueError(f"it has more than {limit} bytes")
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
