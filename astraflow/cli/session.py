"""A whole run on this machine, from the first process to the summary."""

import asyncio
import json
import os
import sys
import time
import webbrowser
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from astraflow.access.authority import Authority
from astraflow.cli.exporting import keda_at, traces_to
from astraflow.cli.fleet import fleet_values, pools_elsewhere
from astraflow.cli.maintaining import maintainer_values
from astraflow.cli.places import Places, chosen_places
from astraflow.cli.programs import DATAFLOW, PREPARE, WEB, WEIGHTS, Programs, trainer_name
from astraflow.cli.reopening import LINK
from astraflow.cli.rundir import RunDirectory, explained
from astraflow.cli.screen import Screen, summary_table
from astraflow.cli.supervisor import Happening, RoleFailed, Supervisor
from astraflow.cli.tally import Summary, Tally
from astraflow.cli.watch import reports
from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.contract.reports import NodeState, Report
from astraflow.recipe import Recipe, snapshot
from astraflow.runtime import logs
from astraflow.runtime.hosts import is_loopback
from astraflow.runtime.service import EXIT_FAILED, be_private, leaves, run_process, run_until
from astraflow.wire.channel import authority_client_tls


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """How a run is watched."""

    is_headless: bool
    """It ends by itself when it has learned, or may go no further."""
    has_web: bool
    opens_browser: bool
    """Open the page in one, if this machine shows any."""
    has_fleet: bool
    """A fleet service starts the nodes."""
    maintainer: str = ""
    """Who looks after the pool: `scripted`, `model`, or nobody."""
    limit_s: float | None
    """Seconds since `began_at` after which it ends either way."""
    began_at: float
    """`time.monotonic()` when the command began."""


class Session:
    """Starts the processes in order, follows the report, and ends when it is time."""

    def __init__(
        self, recipe: Recipe, directory: RunDirectory, places: Places, screen: Screen, options: SessionOptions
    ) -> None:
        self._programs = Programs(recipe, directory, places)
        self._directory = directory
        self._places = places
        self._screen = screen
        self._options = options
        self._tally = Tally([PolicyId(policy) for policy in recipe.policies], window_steps=recipe.stop.window_steps)
        self._pids: dict[str, int] = {}
        self._endings: dict[str, str] = {}
        """How each program that died did so last."""
        self._troubles: tuple[str, ...] = ()
        """What kept the run from going on when it last reported."""
        self._busy_with = "starting"
        self._reason = "stopped by hand"

    async def run(self, stop: asyncio.Event) -> Summary:
        """Everything, until it is done, fails, or `stop` is set; all processes are gone afterwards."""
        supervisor = Supervisor(self._on_happening)
        ended_at: float | None = None
        has_failed = False
        try:
            async with supervisor:
                await run_until(stop, self._work(supervisor), drain=self._nothing_to_finish)
                ended_at = time.monotonic()
                self._screen.status("stopping")
        except* AstraFlowError as problems:
            has_failed = True
            self._reason = "; ".join(str(problem) for problem in leaves(problems))
        return self._tally.summary(
            reason="; ".join((self._reason, *self._troubles)),
            has_failed=has_failed,
            began_at=self._options.began_at,
            ended_at=ended_at or time.monotonic(),
            restarts=supervisor.restarts,
        )

    async def _work(self, supervisor: Supervisor) -> None:
        options = self._options
        try:
            async with asyncio.timeout_at(_on_loop(options.began_at + options.limit_s) if options.limit_s else None):
                await self._start_services(supervisor)
                async with asyncio.TaskGroup() as tasks:
                    starting = [
                        tasks.create_task(self._start_trainers(supervisor)),
                        tasks.create_task(self._show_page(supervisor)),
                    ]
                    self._reason = await self._follow(supervisor)
                    for task in starting:
                        task.cancel()
        except TimeoutError:
            self._reason = f"the time limit of {options.limit_s:g} s was reached"

    async def _nothing_to_finish(self) -> None:
        """The processes finish what they have to finish by themselves."""

    async def _start_services(self, supervisor: Supervisor) -> None:
        supervisor.start(self._programs.weights())
        supervisor.start(self._programs.dataflow(ends=self._options.is_headless))
        if self._options.has_web:
            supervisor.start(self._programs.web(has_fleet=self._options.has_fleet))
        await supervisor.ready(WEIGHTS)
        await supervisor.ready(DATAFLOW)
        self._busy_with = "waiting for the first step"
        for program in [self._programs.fleet()] if self._options.has_fleet else self._programs.nodes():
            supervisor.start(program)
        if self._options.maintainer:
            supervisor.start(self._programs.maintainer())

    async def _start_trainers(self, supervisor: Supervisor) -> None:
        preparation = self._programs.preparation()
        if preparation is not None:
            supervisor.start(preparation)
            self._screen.say("Preparing the model: a short supervised start, made once and cached")
            await supervisor.left(PREPARE)
            self._busy_with = "waiting for the first step"
        for trainer in self._programs.trainers():
            supervisor.start(trainer)

    async def _show_page(self, supervisor: Supervisor) -> None:
        if not self._options.has_web:
            return
        try:
            url = await supervisor.ready(WEB)
        except RoleFailed as problem:
            self._screen.say(f"{problem}. The run goes on without its page.", style="yellow")
            return
        if self._options.opens_browser and has_display():
            await asyncio.to_thread(webbrowser.open, page_link(self._directory.state(WEB)) or url)

    async def _follow(self, supervisor: Supervisor) -> str:
        """Take in reports until the run is done; returns why it is."""
        reason = ""
        tls = authority_client_tls(Authority.opened(self._directory.authority)) if self._places.is_tls else None
        async with aclosing(reports(self._places.dataflow, token=self._directory.token, tls=tls)) as following:
            async for report in following:
                if isinstance(report, AstraFlowError):
                    self._screen.status(f"dataflow is away: {report}")
                    continue
                self._take(report, supervisor)
                if report.completion is not None:
                    reason = report.completion.reason
                if report.completion is not None and report.completion.ends_run:
                    break
        return reason

    def _take(self, report: Report, supervisor: Supervisor) -> None:
        for name in at_work(report):
            supervisor.works(name)
        had_learned = self._tally.has_learned
        self._tally.observe(report)
        for trouble in set(report.troubles) - set(self._troubles):
            self._screen.say(trouble, style="yellow")
        self._troubles = report.troubles
        if any(stream.steps for stream in report.streams):
            self._screen.progress(report)
        else:
            self._screen.status(f"{self._busy_with}; {len(report.nodes)} nodes have joined")
        if self._tally.has_learned and not had_learned and not self._options.is_headless:
            reason = report.completion.reason if report.completion else ""
            self._screen.say(f"Learned: {reason}. The run goes on; Ctrl-C ends it.", style="green")

    def _page(self, address: str) -> str:
        """Where the page is: a link that logs in for a terminal, and no link where it would end in a log file."""
        if not self._screen.is_terminal:
            return f"{address} (`astraflow login-link {self._directory.path}` prints a link that logs in)"
        return page_link(self._directory.state(WEB)) or address

    def _on_happening(self, happening: Happening) -> None:
        program, message = happening.program, happening.message
        if happening.kind == "started":
            self._pids[program] = happening.pid
        elif happening.kind == "ready" and program == WEB:
            self._screen.say(f"The run's page: {self._page(message)}", style="bold")
        elif happening.kind == "progress":
            self._busy_with = message
        elif happening.kind == "died":
            self._endings[program] = message
        elif happening.kind == "restarting":
            self._screen.say(f"{program} {self._endings[program]}; starting it again", style="yellow")
        elif happening.kind == "given_up" and program == WEB:
            self._screen.say(message, style="yellow")
        elif happening.kind == "left" and program != PREPARE:
            self._screen.say(f"{program} left the run")
        try:
            self._directory.note_happening(f"{program} {happening.kind} {message}".rstrip(), self._pids)
        except AstraFlowError as problem:
            self._screen.say(str(problem), style="yellow")


def page_link(directory: Path) -> str:
    """The page's login link, which its process keeps in a private file; empty when it cannot be read."""
    try:
        return (directory / LINK).read_text()
    except OSError:
        return ""


def at_work(report: Report) -> list[str]:
    """The nodes and trainers that the report shows working, by the names of their processes."""
    nodes = [node.facts.name for node in report.nodes if node.state is NodeState.READY]
    trainers = [trainer_name(stream.policy) for stream in report.streams if stream.steps or stream.is_waiting]
    return nodes + trainers


def run_here(
    recipe: Recipe,
    options: SessionOptions,
    *,
    directory: Path | None,
    host: str,
    advertise: str,
    tls: bool | None,
    web_port: int,
    summary_file: Path | None,
) -> int:
    """Run a recipe to its end on this machine and say what came of it; returns the exit code.

    advertise: under which name machines elsewhere reach `host`; empty for that itself.
    tls: whether services speak mutual TLS; None for beyond loopback only.
    Raises: InvalidInput for a port or folder that cannot be used, StorageFull.
    """
    if options.maintainer and not options.has_fleet:
        raise InvalidInput("--maintainer goes with --fleet: it looks after pools that a fleet service sizes")
    be_private()
    logs.configure(level="ERROR")  # what the processes do is in their logs; here a person reads the screen
    console = Console(stderr=False, highlight=False)
    metrics = str(recipe.dataflow.get("metrics", ""))
    places = chosen_places(host, advertise=advertise, tls=tls, web_port=web_port, metrics=metrics)
    lost = pools_elsewhere(recipe) if options.has_fleet else ()
    outcome: list[Summary] = []
    with RunDirectory.opened(directory, name=recipe.name, seed=recipe.seed, recipe=snapshot(recipe)) as opened:
        opened.note(
            dataflow=places.dataflow,
            weights=places.weights,
            enroll=places.enroll,
            is_tls=places.is_tls,
            metrics=places.metrics_url,
            keda=keda_at(recipe),
            traces=traces_to(recipe, opened.path),
            fleet=places.fleet if options.has_fleet else "",
        )
        if options.has_fleet:
            opened.tell_fleet(fleet_values(recipe, run=opened.facts.run))
        if options.maintainer:
            opened.tell_maintainer(maintainer_values(recipe, who=options.maintainer))

        async def main(stop: asyncio.Event) -> None:
            with Screen(console) as screen:
                screen.say(f"Run {opened.facts.run}; its folder: {opened.path}")
                if lost and is_loopback(host):
                    screen.say(
                        f"Machines of the pools {', '.join(lost)} are told to join {places.dataflow}, which is their "
                        "own loopback where they are others than this one: give --host an address that they reach",
                        style="yellow",
                    )
                outcome.append(await Session(recipe, opened, places, screen, options).run(stop))

        code = run_process(main)
    if not outcome:
        return code or EXIT_FAILED
    summary = outcome[0]
    if summary.steps or not summary.failed:
        console.print(summary_table(summary))
    if summary.failed:
        Console(stderr=True, highlight=False).print(Text(f"error: {summary.reason}"), soft_wrap=True)
    if summary_file is not None:
        _write_summary(summary_file, summary, opened)
    has_done_its_job = not options.is_headless and summary.balanced and not summary.failed
    return 0 if has_done_its_job else summary.exit_code


def has_display() -> bool:
    """Whether a browser could show something here; the text browsers that also answer would take the terminal."""
    return not sys.platform.startswith("linux") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _on_loop(at: float) -> float:
    """A moment of `time.monotonic()` on the running loop's clock."""
    return asyncio.get_running_loop().time() + at - time.monotonic()


def _write_summary(file: Path, summary: Summary, directory: RunDirectory) -> None:
    content = {**asdict(summary), "run": asdict(directory.facts), "directory": str(directory.path)}
    try:
        file.write_text(json.dumps(content, indent=2) + "\n")
    except OSError as problem:
        raise explained(problem, f"the summary file {file}") from None
