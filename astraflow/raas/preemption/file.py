"""A notice as a file: for schedulers and scripts that learn of the end by their own means."""

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from astraflow.contract.errors import Unavailable
from astraflow.raas.preemption import notices
from astraflow.raas.preemption.base import Notice, time_in
from astraflow.runtime.config import Config
from astraflow.runtime.overrides import SetBy

_MAX_BYTES = 4096


class FileNoticeOptions(Config):
    """Which file, and what it means."""

    path: Annotated[Path, SetBy.RECIPE]
    """While it exists, the machine is going away, whatever is in it. `{"deadline_s": 30}` says how long after the file
    was written, `{"time": "2030-01-31T12:00:00Z"}` when."""
    every_s: float = Field(default=1.0, gt=0)
    """How often it is looked for."""
    deadline_s: float = Field(default=120.0, ge=0)
    """From when the file was written to the end, where it does not say."""


@notices.register("file", options=FileNoticeOptions)
class FileNotice:
    """Looks for a file. One that was left behind keeps a node from taking part until somebody removes it."""

    def __init__(self, options: FileNoticeOptions) -> None:
        self._options = options
        self.every_s = options.every_s

    def look(self, now: float) -> Notice | None:
        """The file's notice. Raises: Unavailable when it is there and cannot be read."""
        path = self._options.path
        try:
            written_at = path.stat().st_mtime
            with path.open("rb") as file:
                text = file.read(_MAX_BYTES)
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise Unavailable(f"the notice {path} cannot be read: {problem}") from problem
        return Notice(at=self._end(_said(text), written_at), source=f"the file {path}")

    def _end(self, said: dict[str, Any], written_at: float) -> float:
        time, deadline_s = said.get("time"), said.get("deadline_s")
        if isinstance(time, str) and (at := time_in(time)) is not None:
            return at
        if isinstance(deadline_s, int | float) and deadline_s >= 0:
            return written_at + deadline_s
        return written_at + self._options.deadline_s


def _said(text: bytes) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
