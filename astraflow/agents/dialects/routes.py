"""Routes of the dialects."""

from collections.abc import Callable
from typing import Any

from astraflow.agents.dialects.chat import ChatDialect
from astraflow.agents.dialects.dialect import Dialect, Json

CALLS: dict[str, Dialect[Any, Any]] = {
    "/v1/chat/completions": ChatDialect(),
}
"""Dialects by path of the requests for a reply."""
COUNTS: dict[str, Callable[[int], Json]] = {}
"""Answers by path of the requests for a number of tokens."""
RESPONSES_PATH = "/v1/responses/"
"""Path of stored responses, before their id."""


def dialect_of(path: str, *, is_anthropic: bool) -> Dialect[Any, Any]:
    """Returns the dialect of a path; for other paths, the one in whose words an error is answered."""
    return CALLS.get(path, CALLS["/v1/chat/completions"])
