"""Preemption notice as a file, for schedulers and scripts that detect the preemption themselves."""

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from astraflow.contract.errors import Unavailable
from astraflow.raas.preemption import notices
from astraflow.raas.preemption.base import Notice, parse_time
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy

_MAX_BYTES = 4096


class FileNoticeOptions(Config):
    """Location of the file and default deadline."""

    path: Annotated[Path, SettableBy.RECIPE]
    """Path of the file; its existence is a notice. Optional JSON content: `{"deadline_s": 30}`, seconds after the file
    was written, or `{"time": "2030-01-31T12:00:00Z"}`."""
    poll_interval_s: float = Field(default=1.0, gt=0)
    """Seconds between two checks."""
    deadline_s: float = Field(default=120.0, ge=0)
    """Seconds from the file's modification time to the preemption when the content names none."""


@notices.register("file", options=FileNoticeOptions)
class FileNotice:
    """Reads notices from a file. The file counts until it is removed, even if it is old."""

    def __init__(self, options: FileNoticeOptions) -> None:
        self._options = options
        self.poll_interval_s = options.poll_interval_s

    def poll(self, now: float) -> Notice | None:
        """Returns the notice of the file, if it exists. Raises: Unavailable when the file cannot be read."""
        path = self._options.path
        try:
            written_at = path.stat().st_mtime
            with path.open("rb") as file:
                text = file.read(_MAX_BYTES)
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise Unavailable(
                f"cannot read the preemption notice {str(path)!r}: {problem}; check its permissions",
                code="preemption.unreadable_notice",
            ) from problem
        return Notice(at=self._end(_parsed(text), written_at), source=f"the file {path}")

    def _end(self, content: dict[str, Any], written_at: float) -> float:
        time, deadline_s = content.get("time"), content.get("deadline_s")
        if isinstance(time, str) and (at := parse_time(time)) is not None:
            return at
        if isinstance(deadline_s, int | float) and deadline_s >= 0:
            return written_at + deadline_s
        return written_at + self._options.deadline_s


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
