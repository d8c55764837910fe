"""Runs of a page in the terminal, and what is sent to launch one."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from astraflow.contract.errors import InvalidInput

_STATES = {"running": "green", "starting": "yellow", "ended": "dim"}


def launch_table(launches: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Launched runs."""
    table = Table("run", "state", "recipe", "by", "launched (UTC)", "its last word", box=None, pad_edge=False)
    for one in launches:
        texts = (one["recipe"], one["actor"], _moment(one["launched_at"]), one["last_word"])
        table.add_row(Text(one["name"]), _state(one["state"]), *(Text(text) for text in texts))
    return table if launches else Text("no run was launched from this page")


def recorded_table(records: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Recorded runs."""
    table = Table("#", "run", "state", "recipe", "began (UTC)", "last report (UTC)", box=None, pad_edge=False)
    for one in records:
        state = Text("live", style="green") if one["is_live"] else Text("out of sight", style="dim")
        times = (_moment(one["started_at"]), _moment(one["last_at"]))
        table.add_row(str(one["id"]), Text(one["name"]), state, Text(one["recipe"]), *times)
    return table if records else Text("no run was recorded by this page")


def launch_line(launch: Mapping[str, Any]) -> RenderableType:
    """One run in a sentence."""
    return Text.assemble(Text(launch["name"], style="bold"), " is ", _state(launch["state"]), f" in {launch['folder']}")


def launch_body(
    *,
    recipe: str,
    of: str,
    overrides: Sequence[str],
    fleet: bool | None,
    endless: bool | None,
    limit_s: float | None,
    reason: str,
) -> dict[str, object]:
    """What to launch; what is None is left to the page.

    Raises: InvalidInput for both or neither of recipe and `of`, and for what is no KEY=VALUE.
    """
    if bool(recipe) == bool(of):
        raise InvalidInput("name a recipe to launch, or with --of an earlier run: one of them")
    settings = {}
    for override in overrides:
        key, sign, value = override.partition("=")
        if not sign or not key:
            raise InvalidInput(f"--set takes KEY=VALUE, as in stop.steps=50, not {override[:80]!r}")
        settings[key.strip()] = value
    what = {"recipe": recipe} if recipe else {"of": of}
    how = {"fleet": fleet, "ends_by_itself": None if endless is None else not endless, "limit_s": limit_s}
    known = {key: value for key, value in how.items() if value is not None}
    return {**what, "set": settings, **known, "reason": reason}


def printable(text: str) -> str:
    """A log without what would steer the terminal.

    >>> printable("done\\x1b[2J\\n")
    'done[2J\\n'
    """
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", text)


def _state(state: str) -> Text:
    return Text(state, style=_STATES.get(state, ""))


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
