"""Launcher of runs: starts them as independent processes, lists those of this machine, stops and resumes them."""

import asyncio
import re
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from astraflow.client.local_runs import LAUNCH_LOG, SUMMARY, LocalRun, LocalRuns, stop_run
from astraflow.contract.errors import Conflict, InvalidInput
from astraflow.runtime.clock import Clock
from astraflow.runtime.folders.launch_facts import LaunchFacts, write_launch
from astraflow.runtime.folders.run_folders import RunFolder, runs_folder
from astraflow.runtime.logs import get_logger
from astraflow.runtime.processes.child import start_independent
from web.launcher.catalogue import CLI_COMMAND
from web.launcher.environments import child_environment
from web.launcher.options import LaunchOptions
from web.security.problems import NotFound

log = get_logger()


class UnknownRun(NotFound):
    """No run of that name has a folder on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """Launch that a user requested."""

    recipe: str
    """Name of the recipe, also for a copy of an earlier run."""
    source: str
    """Name of the recipe or of the earlier run, which the name of the run begins with."""
    location: str
    """Recipe, or snapshot of an earlier run."""
    overrides: tuple[str, ...]
    """Checked overrides of the location."""
    earlier_overrides: tuple[str, ...] = ()
    """Overrides of its recipe in the snapshot of an earlier run."""
    options: LaunchOptions
    actor: str
    reason: str = ""
    needs_admin: bool = False
    """Whether only an admin may override some of its settings."""
    key: str = ""
    """Idempotency key; empty for a launch without one."""
    request: str = ""
    """Request of the launch with this key, stored before its process starts."""


class Launcher:
    """Runs of this machine."""

    def __init__(self, runs: LocalRuns, *, clock: Clock) -> None:
        self._runs = runs
        self._clock = clock

    async def launches(self) -> list[LocalRun]:
        """Returns all runs of this machine, the latest first."""
        return await asyncio.to_thread(self._runs.all)

    async def launch(self, name: str) -> LocalRun:
        """Returns a run. Raises: UnknownRun."""
        run = await asyncio.to_thread(self._runs.find, name)
        if run is None:
            raise UnknownRun(
                f"cannot find the run {name[:120]!r}: no run of this name has a folder on this machine; see the "
                "list of runs",
                code="launch.unknown_run",
            )
        return run

    async def launch_with_key(self, key: str) -> tuple[str, str] | None:
        """Returns the request and the name of the run that was launched with this key; None for an unused key."""
        runs = await self.launches()
        return next(((run.launch.request, run.name) for run in runs if run.launch.key == key), None)

    async def start(self, order: LaunchOrder) -> LocalRun:
        """Starts a run of a recipe, or of another run's snapshot, in a new folder.

        Raises: InvalidInput when the process or its folder cannot be created.
        """
        stem = re.sub(r"[^a-z0-9]+", "-", order.source.lower()).strip("-") or "run"
        name = f"{stem}-{datetime.fromtimestamp(self._clock.wall(), UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        folder = RunFolder(runs_folder() / name)
        facts = LaunchFacts(
            recipe=order.recipe,
            overrides=(*order.earlier_overrides, *order.overrides),
            actor=order.actor,
            reason=order.reason,
            launched_at=self._clock.wall(),
            has_fleet=order.options.has_fleet,
            ends_by_itself=order.options.ends_by_itself,
            limit_s=order.options.limit_s,
            parent=order.source if order.options.fork_step is not None else "",
            parent_step=order.options.fork_step,
            has_fresh_optimizer=order.options.fork_step is not None and order.options.has_fresh_optimizer,
            needs_admin=order.needs_admin,
            key=order.key,
            request=order.request,
        )
        sets = [part for override in order.overrides for part in ("--set", override)]
        try:
            arguments = [*order.options.arguments(), *sets, "--", order.options.target(order.location)]
            return await self._run(folder, facts, arguments, command=order.options.command)
        except InvalidInput:  # no process was started, so the key must not stand for this run
            await asyncio.to_thread(shutil.rmtree, folder.path, ignore_errors=True)
            raise

    async def resume(self, name: str, options: LaunchOptions) -> LocalRun:
        """Resumes a run that ended. Raises: UnknownRun, Conflict while it is active, InvalidInput."""
        run = await self.launch(name)
        if run.is_active:
            raise Conflict(
                f"cannot resume the run {name!r}: it is {run.state.value}; wait until it ends, or stop it",
                code="launch.not_ended",
            )
        if not run.can_resume:
            raise InvalidInput(
                f"cannot resume the run {name!r}: it never started; launch its recipe", code="launch.no_snapshot"
            )
        return await self._run(run.folder, run.launch, [*options.arguments(), "--", str(run.folder.recipe_file)])

    async def stop(self, name: str) -> LocalRun:
        """Terminates a run gracefully: its nodes return their tasks. Raises: UnknownRun, Conflict when it has ended or
        belongs to another user."""
        run = await self.launch(name)
        pid = await asyncio.to_thread(stop_run, run)
        log.info("run stopped", run=name, pid=pid)
        return run

    async def _run(
        self, folder: RunFolder, facts: LaunchFacts, arguments: Sequence[str], *, command: str = "run"
    ) -> LocalRun:
        argv = [*CLI_COMMAND, command, "--no-web", "--run-dir", str(folder.path), *arguments]
        await asyncio.to_thread(self._prepare_folder, folder, facts)  # first: no process without a listed run
        pid = await self._start_process(folder, argv)
        log.info("run launched", run=folder.path.name, pid=pid)
        await asyncio.to_thread(self._store_pid, folder, facts, pid)
        run = await asyncio.to_thread(self._runs.find, folder.path.name)
        return run or await self.launch(folder.facts.run)

    @staticmethod
    def _prepare_folder(folder: RunFolder, facts: LaunchFacts) -> None:
        """Creates the folder with the facts of the launch. Raises: InvalidInput."""
        try:
            folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.log(LAUNCH_LOG).parent.mkdir(exist_ok=True)
            (folder.path / SUMMARY).unlink(missing_ok=True)  # of an earlier start
            write_launch(folder.path, facts.model_copy(update={"pid": 0}))
        except OSError as problem:
            raise _start_error(folder, problem) from None

    @staticmethod
    def _store_pid(folder: RunFolder, facts: LaunchFacts, pid: int) -> None:
        """Stores the process id. A failure does not fail the launch: a process without one is found by its folder."""
        try:
            write_launch(folder.path, facts.model_copy(update={"pid": pid}))
        except OSError as problem:
            log.warning("process_id_not_stored", run=folder.path.name, pid=pid, problem=str(problem))

    @staticmethod
    async def _start_process(folder: RunFolder, argv: Sequence[str]) -> int:
        """Returns the process id. Raises: InvalidInput."""
        log_file, environment = folder.log(LAUNCH_LOG), child_environment()
        try:
            return await asyncio.to_thread(start_independent, argv, environment=environment, log_file=log_file)
        except OSError as problem:
            raise _start_error(folder, problem) from None


def _start_error(folder: RunFolder, problem: OSError) -> InvalidInput:
    return InvalidInput(
        f"cannot start the run in {str(folder.path)!r}: {problem.strerror}; check the runs folder",
        code="launch.start_failed",
    )
