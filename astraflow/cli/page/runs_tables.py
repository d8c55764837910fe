"""Runs of a page in the terminal, and the request to launch one."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from astraflow.cli.inspection.screen import size
from astraflow.cli.output import Table
from astraflow.cli.page.ended_runs import EndedRun
from astraflow.contract.errors import InvalidInput

_STATES = {"running": "green", "starting": "yellow", "ended": "dim"}


def launch_table(launches: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = Table("run", "state", "recipe", "by", "launched (UTC)", "last message")
    for launch in launches:
        texts = (launch["recipe"], launch["actor"], time_text(launch["launched_at"]), launch["final_message"])
        table.add(launch["name"], state_text(launch["state"]), *texts)
    return table if launches else Text("no launched runs")


def recorded_table(records: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = Table("#", "run", "state", "recipe", "started (UTC)", "last report (UTC)")
    for record in records:
        state = Text("live", style="green") if record["is_live"] else Text("not live", style="dim")
        times = (time_text(record["started_at"]), time_text(record["last_at"]))
        table.add(str(record["id"]), record["name"], state, record["recipe"], *times)
    return table if records else Text("no recorded runs")


def clean_rows(
    ended: Sequence[EndedRun], removable: Sequence[EndedRun], *, now: float, is_removed: bool
) -> list[dict[str, Any]]:
    """Returns what `astraflow runs clean` says of each ended run. is_removed: the removable ones were removed."""
    return [
        {
            "name": run.name,
            "size_bytes": run.size_bytes,
            "age_days": round(max(0.0, now - run.ended_at) / 86400, 2),
            "last_step": run.last_step,
            "is_removable": run in removable,
            "is_removed": is_removed and run in removable,
        }
        for run in ended
    ]


def clean_table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Returns the ended runs as a table above the total of the removable ones."""
    figures = ("size", "age (days)", "last step")
    table = Table("run", "", *figures, right=figures, wrapped=())
    for row in rows:
        action = ("removed" if row["is_removed"] else "can be removed") if row["is_removable"] else "stays"
        step = "none" if row["last_step"] is None else str(row["last_step"])
        table.add(row["name"], action, size(row["size_bytes"]), f"{row['age_days']:.1f}", step)
    chosen = [row for row in rows if row["is_removable"]]
    total = f"{len(chosen)} of {len(rows)} ended runs, {size(sum(row['size_bytes'] for row in chosen))}"
    if any(row["is_removed"] for row in chosen):
        return Group(table, Text(f"removed {total}"))
    hint = "add --yes to remove them" if chosen else "--older-than DAYS chooses by age"
    return Group(table, Text(f"can be removed: {total}; {hint}"))


def launch_line(launch: Mapping[str, Any]) -> RenderableType:
    return Text.assemble(
        Text(launch["name"], style="bold"), " is ", state_text(launch["state"]), f" in {launch['folder']}"
    )


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
    """Returns the body of a launch request; values of None are left to the page.

    Raises: InvalidInput for both or neither of recipe and `of`, and for an override without KEY=VALUE.
    """
    if bool(recipe) == bool(of):
        raise InvalidInput(
            "cannot launch a run: give exactly one of a recipe and an earlier run; name a RECIPE, or use --of",
            code="launch.recipe_required",
        )
    settings = {}
    for override in overrides:
        key, sign, value = override.partition("=")
        if not sign or not key:
            raise InvalidInput(
                f"cannot parse --set {override[:80]!r}: it is not KEY=VALUE; write it as in stop.steps=50",
                code="recipe.invalid_override",
            )
        settings[key.strip()] = value
    source = {"recipe": recipe} if recipe else {"of": of}
    options = {"fleet": fleet, "ends_by_itself": None if endless is None else not endless, "limit_s": limit_s}
    given_options = {key: value for key, value in options.items() if value is not None}
    return {**source, "set": settings, **given_options, "reason": reason}


def printable(text: str) -> str:
    """Returns a log without control characters of the terminal.

    >>> printable("done\\x1b[2J\\n")
    'done[2J\\n'
    """
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", text)


def state_text(state: str) -> Text:
    """Returns the state of a run with its colour."""
    return Text(state, style=_STATES.get(state, ""))


def time_text(at: float) -> str:
    """Returns a time in UTC. at: Unix seconds."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
