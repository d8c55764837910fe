"""Sweeps: all combinations of seeds and settings of a recipe, as runs of one group that a repeated call continues."""

import asyncio
import hashlib
import itertools
import json
import re
import statistics
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.cli.inspection.screen import number
from astraflow.cli.output import Table
from astraflow.cli.running.local_run import STOPPED
from astraflow.client.local_runs import LAUNCH_LOG, SUMMARY
from astraflow.contract.errors import InvalidInput
from astraflow.recipe.loading import Check, load_recipe
from astraflow.runtime.folders.private_files import write_private
from astraflow.runtime.folders.run_folders import RunFolder, home, runs_folder
from astraflow.runtime.folders.run_metadata import MAX_TAG, MAX_TITLE, change_metadata
from astraflow.runtime.locks import exclusive_lock

MAX_RUNS = 1000
"""Largest number of runs in a sweep."""

_POLL_S = 1.0
"""Interval at which a run is awaited that an earlier call started and that stops. Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptRun:
    """One run of a sweep."""

    name: str
    values: Mapping[str, str]
    """Varied settings, as TOML values or texts."""
    seed: int

    @property
    def folder(self) -> RunFolder:
        return RunFolder(runs_folder() / self.name)

    @property
    def overrides(self) -> tuple[str, ...]:
        """Overrides of the recipe."""
        return (*(f"{key}={value}" for key, value in self.values.items()), f"seed={self.seed}")

    @property
    def tags(self) -> tuple[str, ...]:
        """Varied settings, without their tables, and seed."""
        words = (*(f"{key.rpartition('.')[2]}={value}" for key, value in self.values.items()), f"seed={self.seed}")
        return tuple(re.sub(r"[,\s]", "_", word)[:MAX_TAG] for word in words)

    @property
    def title(self) -> str:
        return " ".join(self.tags)[:MAX_TITLE]

    @property
    def summary(self) -> Mapping[str, Any] | None:
        """Summary of its end; None if it has not ended, was stopped by a person, or failed."""
        try:
            summary: dict[str, Any] = json.loads((self.folder.path / SUMMARY).read_text())
        except (OSError, ValueError):
            return None
        return None if summary["failed"] or str(summary["reason"]).startswith(STOPPED) else summary


class Sweep:
    """Runs of all combinations. The plan is stored, so that the same call continues with the runs that are missing."""

    def __init__(self, recipe: str, varied: Sequence[str], settings: Sequence[str], *, seeds: int, name: str) -> None:
        """varied: `KEY=VALUE,VALUE,...`. settings: overrides of all runs. name: empty for one from the other arguments.

        Raises: InvalidInput for a varied setting without values, for too many runs, and where a combination is not
        valid.
        """
        axes = dict(_axis(text) for text in varied)
        plan = {"recipe": recipe, "vary": axes, "set": list(settings), "seeds": seeds}
        digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:8]
        self._plan = json.dumps(plan, indent=2)
        self._recipe = recipe
        self._settings = tuple(settings)
        base = load_recipe(recipe, settings, check=Check.NONE).name
        self.name = name or f"{base}-sweep-{digest}"
        combinations = list(itertools.product(*axes.values()))
        if len(combinations) * seeds > MAX_RUNS:
            raise InvalidInput(
                f"cannot sweep {len(combinations) * seeds} runs: {MAX_RUNS} are allowed; vary fewer settings",
                code="sweep.too_many_runs",
            )
        members = itertools.product(combinations, range(seeds))
        self.runs = tuple(
            SweptRun(name=f"{self.name}-{index:02d}", values=dict(zip(axes, values, strict=True)), seed=seed)
            for index, (values, seed) in enumerate(members, start=1)
        )
        for run in self.runs[::seeds]:
            load_recipe(recipe, (*settings, *run.overrides), check=Check.LIGHT)

    async def run(self, stop: asyncio.Event, *, parallel: int, limit_s: float | None) -> None:
        """Runs what is missing, `parallel` at a time, until all have ended or `stop` is set.

        Raises: InvalidInput when the name belongs to another sweep, or another call runs this one.
        """
        folder = home() / "sweeps" / self.name
        refusal = InvalidInput(
            f"cannot run the sweep {self.name!r}: another call runs it; wait for it, or stop it", code="sweep.active"
        )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.enter_context(exclusive_lock(folder / "lock", refusal=refusal))
            self._store_plan(folder / "plan.json")
            free = asyncio.Semaphore(parallel)
            async with asyncio.TaskGroup() as tasks:
                for run in self.runs:
                    if run.summary is None:
                        tasks.create_task(self._run_one(run, free, stop, limit_s))

    def rows(self) -> list[dict[str, Any]]:
        """Returns one row for each combination, over its seeds, with its runs."""
        groups = itertools.groupby(self.runs, key=lambda run: run.values)
        return [_row(values, list(runs)) for values, runs in groups]

    def _store_plan(self, file: Path) -> None:
        if file.exists() and file.read_text() != self._plan:
            raise InvalidInput(
                f"cannot run the sweep {self.name!r}: it has other settings or seeds ({file}); choose another --name",
                code="sweep.other_plan",
            )
        write_private(file, self._plan)

    async def _run_one(
        self, run: SweptRun, free: asyncio.Semaphore, stop: asyncio.Event, limit_s: float | None
    ) -> None:
        async with free:
            # A run of an earlier call that was killed goes on without it, to its end.
            while run.folder.is_active and not stop.is_set():  # noqa: ASYNC110 (nothing tells the end of its process)
                await asyncio.sleep(_POLL_S)
            if stop.is_set() or run.summary is not None:
                return
            log = run.folder.log(LAUNCH_LOG)
            log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            change_metadata(run.folder.path, group=self.name, title=run.title, tags=run.tags)
            sets = [part for override in (*self._settings, *run.overrides) for part in ("--set", override)]
            options = ["--headless", "--no-web", "--run-dir", str(run.folder.path), *sets]
            options += ["--limit-s", f"{limit_s:g}"] if limit_s else []
            print(f"{run.name}: {run.title}", file=sys.stderr, flush=True)  # noqa: T201 (progress of the command)
            argv = (sys.executable, "-m", "astraflow.cli", "run", *options, "--", self._recipe)
            with log.open("ab") as out:
                process = await asyncio.create_subprocess_exec(*argv, stdout=out, stderr=out, start_new_session=True)
            await _ended(process, stop)


async def _ended(process: asyncio.subprocess.Process, stop: asyncio.Event) -> None:
    """Waits until a run has ended; one that is to stop hands its tasks back first."""
    waiting, stopping = asyncio.create_task(process.wait()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            process.terminate()
        await waiting
    finally:
        stopping.cancel()


def _axis(text: str) -> tuple[str, list[str]]:
    """Returns a varied setting with its values.

    >>> _axis("policies.solver.backend.learning_rate=1e-3,3e-4"), _axis("a.kind=adamw,muon"), _axis("x=[1,2],[3]")[1]
    (('policies.solver.backend.learning_rate', ['1e-3', '3e-4']), ('a.kind', ['adamw', 'muon']), ['[1,2]', '[3]'])
    """
    key, _, values = (part.strip() for part in text.partition("="))
    parts = _parts(values)
    if not key or not parts or len(set(parts)) < len(parts):
        raise InvalidInput(
            f"cannot vary {text!r}: it has no key, no values, or a value twice; write KEY=VALUE,VALUE as in "
            "policies.solver.backend.learning_rate=1e-3,3e-4",
            code="sweep.invalid_axis",
        )
    return key, parts


def _parts(values: str) -> list[str]:
    """Splits values at the commas that are in no TOML value of several parts."""
    parts, pending = list[str](), ""
    for piece in values.split(","):
        pending = f"{pending},{piece}" if pending else piece
        if pending.lstrip()[:1] not in ("[", "{", '"', "'") or _is_toml(pending):
            parts.append(pending.strip())
            pending = ""
    return [part for part in (*parts, pending.strip()) if part]


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(f"value = {text}")
    except ValueError:
        return False
    return True


def _row(values: Mapping[str, str], runs: Sequence[SweptRun]) -> dict[str, Any]:
    ended = [(run, summary) for run in runs if (summary := run.summary) is not None]
    kind = "loss" if any(_loss(summary) is not None for _, summary in ended) else "reward"
    finals = [_loss(summary) if kind == "loss" else summary["reward_last"] for _, summary in ended]
    return {
        "values": dict(values),
        "runs": [{"name": run.name, "seed": run.seed, "has_ended": run.summary is not None} for run in runs],
        "ended": len(ended),
        "reached": sum(bool(summary["learned"]) for _, summary in ended),
        "steps": _spread([summary["steps"] for _, summary in ended]),
        "seconds": _spread([summary["seconds_training"] for _, summary in ended]),
        "final_of": kind,
        "final": _spread([value for value in finals if value is not None]),
    }


def _loss(summary: Mapping[str, Any]) -> float | None:
    """Returns the last loss of a run that trains on answers of data sets only, the largest of its policies."""
    losses = [policy["loss_last"] for policy in summary["policies"] if policy["loss_last"] is not None]
    return max(losses, default=None)


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def sweep_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Returns the rows as a table: medians over seeds, with minimum and maximum."""
    keys = list(rows[0]["values"])
    figures = ("ended", "goal reached", "steps", "seconds", "final reward or loss")
    table = Table(*(key.rpartition(".")[2] for key in keys), *figures, right=figures, wrapped=())
    for row in rows:
        counts = (f"{row['ended']} of {len(row['runs'])}", f"{row['reached']} of {row['ended']}")
        figures_text = (_text(row["steps"], "{:.0f}"), _text(row["seconds"], "{:.1f}"), _text(row["final"], ""))
        table.add(*(row["values"][key] for key in keys), *counts, *figures_text)
    return table


def _text(spread: Mapping[str, float] | None, form: str) -> str:
    if spread is None:
        return "—"
    values = [spread[key] for key in ("median", "min", "max")]
    median, low, high = (form.format(value) if form else number(value) for value in values)
    return f"{median} ({low} to {high})"
