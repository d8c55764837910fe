"""Whole run on this machine, from the first process to the summary."""

import asyncio
import json
import sys
import time
import webbrowser
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlencode

from rich.console import Console
from rich.text import Text

from astraflow.access.authority import Authority
from astraflow.cli.fleet.config import fleet_values, remote_pools
from astraflow.cli.inspection.archive_viewer import LINK, has_display
from astraflow.cli.inspection.conversations import print_conversations
from astraflow.cli.inspection.report_viewer import reports
from astraflow.cli.inspection.run_summary import RunReports, Summary
from astraflow.cli.inspection.screen import Screen, summary_table, waiting_line
from astraflow.cli.maintainer.settings import maintainer_values
from astraflow.cli.option_groups import Listening
from astraflow.cli.run_directory import RunDirectory, storage_error
from astraflow.cli.run_endpoints import RunEndpoint
from astraflow.cli.running.programs import DATAFLOW, PREPARE, WEB, WEIGHTS, Programs, check_models
from astraflow.cli.running.service_addresses import ServiceAddresses, choose_addresses, keda_address, traces_destination
from astraflow.cli.running.supervisor import ProcessEvent, Program, RoleFailed, Supervisor
from astraflow.client.local_runs import SUMMARY
from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import Record, render
from astraflow.contract.reports.report import Event, NodeState, Report
from astraflow.dataflow.reporting.failures import FAILING_S, TotalFailure
from astraflow.recipe.config import Recipe
from astraflow.recipe.loading import snapshot
from astraflow.runtime import logs
from astraflow.runtime.folders.launch_facts import LaunchFacts
from astraflow.runtime.folders.run_folders import trainer_name
from astraflow.runtime.http.hosts import is_loopback, may_show_link
from astraflow.runtime.service import EXIT_FAILED, flattened_errors, make_files_private, run_process, run_until
from astraflow.wire.channel import authority_client_tls

JOINED_NODES_WAIT_S = 10.0
"""Longest wait for nodes from elsewhere to leave a complete run. Seconds."""

STOPPED = "stopped by the user"
"""Reason of the end of a run that a person or a signal stopped."""

RUN = "run"
"""Name of the run among its processes, in the log of their events."""

_IN_RUN = (NodeState.JOINING, NodeState.READY, NodeState.DRAINING)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRunOptions:
    """Options of a run on this machine."""

    is_headless: bool
    """True if the run ends by itself when its stop condition is reached."""
    has_web: bool
    opens_browser: bool
    """True to open the page in a browser, if this machine has a display."""
    has_fleet: bool
    """True if a fleet service starts the nodes."""
    maintainer_kind: str = ""
    """Maintainer of the pools: `scripted` or `model`; empty for none."""
    conversations: int = 0
    """Number of conversations to print at the end, of the first step and of the last each."""
    own_trainers: tuple[str, ...] = ()
    """Policies whose trainers the user starts."""
    limit_s: float | None
    """Time limit in seconds since `began_at`; None for no limit."""
    began_at: float
    """`time.monotonic()` at the start of the command."""


class LocalRun:
    """Starts the processes in order, follows the report, and ends at the stop condition."""

    def __init__(
        self,
        recipe: Recipe,
        directory: RunDirectory,
        addresses: ServiceAddresses,
        screen: Screen,
        options: LocalRunOptions,
    ) -> None:
        self._programs = Programs(recipe, directory, addresses)
        self._directory = directory
        self._addresses = addresses
        self._screen = screen
        self._options = options
        trained = [PolicyId(name) for name, policy in recipe.policies.items() if policy.is_trained]
        self._reports = RunReports(
            trained, window_steps=recipe.stop.window_steps, has_loss_target=recipe.stop.loss is not None
        )
        self._total_failure = TotalFailure()
        self._pids: dict[str, int] = {}
        self._exit_messages: dict[str, str] = {}
        """Latest exit message of each program that failed."""
        self._problems: Mapping[tuple[str, str], Record] = {}
        """Problems in the latest report."""
        self._announced_at = time.time()
        """Time of the latest suspension that was printed, or of the start. Unix seconds."""
        self._page_address = ""
        """Address of the page; empty while it does not serve."""
        self._is_complete = False
        """True once the stop condition is met and the run continues."""
        self._has_stepped = False
        """True once a trainer has made a step since this start."""
        self._steps_before: int | None = None
        """Steps in the first report of this start; None before it."""
        self._busy_with = "starting"
        self._reason = STOPPED

    async def run(self, stop: asyncio.Event) -> Summary:
        """Runs until the end, a failure or `stop`; all processes have exited afterwards."""
        supervisor = Supervisor(self._on_event)
        ended_at: float | None = None
        has_failed = False
        try:
            async with supervisor:
                await run_until(stop, self._work(supervisor))
                ended_at = time.monotonic()
                self._screen.status("stopping")
        except* AstraFlowError as problems:
            has_failed = True
            self._reason = "; ".join(str(problem) for problem in flattened_errors(problems))
        return self._reports.summary(
            reason="; ".join((self._reason, *map(render, self._problems.values()))),
            has_failed=has_failed,
            began_at=self._options.began_at,
            ended_at=ended_at or time.monotonic(),
            restarts=supervisor.restarts,
        )

    async def _work(self, supervisor: Supervisor) -> None:
        options = self._options
        try:
            async with asyncio.timeout_at(_loop_time(options.began_at + options.limit_s) if options.limit_s else None):
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
            self._reason = f"time limit of {options.limit_s:g} s reached"

    async def _start_services(self, supervisor: Supervisor) -> None:
        supervisor.start(self._programs.weights())
        supervisor.start(self._programs.dataflow(ends_run=self._options.is_headless))
        if self._options.has_web:
            supervisor.start(self._programs.web(has_fleet=self._options.has_fleet))
        await supervisor.ready(WEIGHTS)
        await supervisor.ready(DATAFLOW)
        self._busy_with = "waiting for the first step"
        for program in [self._programs.fleet()] if self._options.has_fleet else self._programs.nodes():
            supervisor.start(program)
        if self._options.maintainer_kind:
            supervisor.start(self._programs.maintainer())

    async def _start_trainers(self, supervisor: Supervisor) -> None:
        preparation = self._programs.preparation()
        if preparation is not None:
            supervisor.start(preparation)
            self._screen.print_message("Preparing the model: short supervised training, run once and cached")
            await supervisor.wait_until_exited(PREPARE)
            self._busy_with = "waiting for the first step"
        for policy, trainer in self._programs.trainers().items():
            if policy not in self._options.own_trainers:
                supervisor.start(trainer)
                continue
            self._screen.print_message(
                f"The policy {policy} waits for your trainer: TrainerSession.of_run({str(self._directory.path)!r}, "
                f"policy={policy!r}); dataflow is at {self._addresses.dataflow}",
                style="bold",
            )

    async def _show_page(self, supervisor: Supervisor) -> None:
        if not self._options.has_web:
            return
        try:
            url = await supervisor.ready(WEB)
        except RoleFailed as problem:
            self._screen.print_message(f"{problem}. The run continues without its page.", style="yellow")
            return
        if self._options.opens_browser and has_display():
            await asyncio.to_thread(webbrowser.open, page_link(self._directory.state_directory(WEB)) or url)

    async def _follow(self, supervisor: Supervisor) -> str:
        """Follows the reports until the run is complete; returns the reason. Raises: InvalidInput when every episode
        fails in a headless run, whose user does not see it."""
        reason = ""
        tls = authority_client_tls(Authority.load(self._directory.authority)) if self._addresses.is_tls else None
        endpoint = RunEndpoint(address=self._addresses.dataflow, token=self._directory.token, tls=tls)
        async with aclosing(reports(endpoint)) as following:
            async for report in following:
                if isinstance(report, AstraFlowError):
                    self._screen.status(f"dataflow is unavailable: {report}")
                    continue
                self._observe(report, supervisor)
                if self._options.is_headless and self._total_failure.observe(report):
                    raise total_failure_error(report)
                if report.completion is not None:
                    reason = report.completion.reason
                if report.completion is not None and report.completion.ends_run and not self._waits_for_nodes(report):
                    break
        return reason

    def _waits_for_nodes(self, report: Report) -> bool:
        return not self._options.has_fleet and waits_for_joined_nodes(report, own=self._programs.nodes())

    def _problem_text(self, problem: Record) -> str:
        outcome = problem.values.get("outcome")
        trajectories = f"; see {self._page_address}/trajectories?{urlencode({'outcome': outcome})}" if outcome else ""
        return f"{render(problem)}{trajectories}"

    def _observe(self, report: Report, supervisor: Supervisor) -> None:
        for name in working_programs(report):
            supervisor.mark_ready(name)
        self._reports.observe(report)
        problems = {(problem.cause, problem.subject): problem for problem in report.problems}
        for key in problems.keys() - self._problems.keys():
            self._screen.print_message(self._problem_text(problems[key]), style="yellow")
        self._problems = problems
        for event in announced_events(report, after=self._announced_at):
            self._announced_at = event.at
            self._screen.print_message(render(event), style="yellow")
        self._note_first_step(sum(stream.training.steps for stream in report.streams))
        if any(stream.training.steps for stream in report.streams):
            self._screen.progress(report)
        else:
            self._screen.status(waiting_line(report, self._busy_with))
        if report.completion is not None and not report.completion.ends_run and not self._is_complete:
            self._is_complete = True
            self._screen.print_message(
                f"Stop condition reached: {report.completion.reason}. The run continues; Ctrl-C ends it.",
                style="green" if report.completion.has_learned else "yellow",
            )

    def _note_first_step(self, steps: int) -> None:
        """Logs the first step after this start, for the progress of the start. steps: of all policies, ever."""
        if self._steps_before is None:
            self._steps_before = steps
        if steps > self._steps_before and not self._has_stepped:
            self._has_stepped = True
            self._on_event(ProcessEvent(program=RUN, kind="stepped"))

    def _page(self, address: str) -> str:
        """Returns the login link of the page, or its address with the command for a link."""
        link = page_link(self._directory.state_directory(WEB))
        if link and may_show_link(link, sys.stdout):
            return link
        return f"{address} (`astraflow login-link {self._directory.path}` prints a login link)"

    def _on_event(self, event: ProcessEvent) -> None:
        program, message = event.program, event.message
        if event.kind == "started":
            self._pids[program] = event.pid
        elif event.kind == "ready" and program == WEB:
            self._page_address = message.rstrip("/")
            self._screen.print_message(f"The run's page: {self._page(message)}", style="bold")
        elif event.kind == "progress":
            self._busy_with = message
        elif event.kind == "failed":
            self._exit_messages[program] = message
        elif event.kind == "restarting":
            self._screen.print_message(f"{program} {self._exit_messages[program]}; restarting it", style="yellow")
        elif event.kind == "abandoned" and program == WEB:
            self._screen.print_message(message, style="yellow")
        elif event.kind == "exited" and program != PREPARE:
            self._screen.print_message(f"{program} left the run")
        try:
            self._directory.record_process_event(f"{program} {event.kind} {message}".rstrip(), self._pids)
        except AstraFlowError as problem:
            self._screen.print_message(str(problem), style="yellow")


def page_link(directory: Path) -> str:
    """Returns the login link from the private file of the page; empty when it cannot be read."""
    try:
        return (directory / LINK).read_text()
    except OSError:
        return ""


def announced_events(report: Report, *, after: float) -> list[Event]:
    """Returns the latest events that the terminal announces: times in which dataflow did not run, and changes of a
    simulated load. after: earlier ones are left out. Unix seconds."""
    kinds = (RecordKind.RUN_SUSPENDED, RecordKind.LOAD_CHANGED)
    return [event for event in report.events if event.kind in kinds and event.at > after]


def working_programs(report: Report) -> list[str]:
    """Returns the process names of the nodes and trainers that work according to the report."""
    nodes = [node.facts.name for node in report.nodes if node.state is NodeState.READY]
    trainers = [
        trainer_name(stream.policy) for stream in report.streams if stream.training.steps or stream.training.is_waiting
    ]
    return nodes + trainers


def total_failure_error(report: Report) -> InvalidInput:
    """Returns the error that ends a run in which every episode fails. The problems of the run follow it with the cause,
    so the latest error of a node is part of it only without any."""
    errors = [] if report.problems else [node.errors[-1] for node in report.nodes if node.errors]
    cause = f" ({errors[0]})" if errors else ""
    return InvalidInput(
        f"cannot continue the run: every episode has failed for {FAILING_S:g} s{cause}; correct the cause and start "
        "again",
        code="run.every_episode_fails",
    )


def waits_for_joined_nodes(report: Report, *, own: Sequence[Program]) -> bool:
    """Returns whether nodes that joined from elsewhere may not know yet that the run is complete.

    Dataflow tells them with the answer to a heartbeat. Without it they would try to reach the ended run. Waiting ends
    after `JOINED_NODES_WAIT_S`.
    """
    names = {program.name for program in own}
    joined = [node for node in report.nodes if node.state in _IN_RUN and node.facts.name not in names]
    return bool(joined) and report.completion is not None and report.at < report.completion.at + JOINED_NODES_WAIT_S


def run_locally(
    recipe: Recipe,
    options: LocalRunOptions,
    listening: Listening,
    *,
    directory: Path | None,
    web_port: int,
    summary_file: Path | None,
    launch: LaunchFacts | None = None,
    base: str = "",
) -> int:
    """Runs a recipe to its end on this machine and prints the summary; returns the exit code.

    launch, base: facts of the launch, and the resolved recipe without its overrides, for the run's folder.

    Raises: InvalidInput for a port or folder that cannot be used and for a missing model, StorageFull.
    """
    _check(recipe, options)
    make_files_private()
    logs.configure(level="ERROR")  # the processes log to files; this terminal shows only the screen
    console = Console(stderr=False, highlight=False)
    addresses = choose_addresses(
        listening.host,
        advertise=listening.advertise,
        tls=listening.tls,
        web_port=web_port,
        metrics=str(recipe.dataflow.get("metrics", "")),
        first_port=listening.ports,
    )
    outcome: list[Summary] = []
    with RunDirectory.opened(
        directory, name=recipe.name, seed=recipe.seed, recipe=snapshot(recipe), launch=launch, base=base
    ) as opened:
        _write_settings(opened, recipe, addresses, options)

        async def main(stop: asyncio.Event) -> None:
            with Screen(console) as screen:
                screen.print_message(f"Run {opened.facts.run}; its folder: {opened.path}")
                if options.has_fleet and is_loopback(listening.host) and (pools := remote_pools(recipe)):
                    screen.print_message(
                        f"Nodes of the pools {', '.join(pools)} cannot reach this machine at {addresses.dataflow}, a "
                        "loopback address; set --host to an address that they reach",
                        style="yellow",
                    )
                outcome.append(await LocalRun(recipe, opened, addresses, screen, options).run(stop))

        code = run_process(main)
    if not outcome:
        return code or EXIT_FAILED
    (summary,) = outcome
    _print_summary(console, summary, opened, conversations=options.conversations)
    for file in [opened.path / SUMMARY, *([summary_file] if summary_file is not None else [])]:
        _write_summary(file, summary, opened)
    is_success = not options.is_headless and summary.balanced and not summary.failed
    return 0 if is_success else summary.exit_code


def _check(recipe: Recipe, options: LocalRunOptions) -> None:
    """Checks that the options fit together and to the recipe, whose models are here. Raises: InvalidInput."""
    if options.maintainer_kind and not options.has_fleet:
        raise InvalidInput(
            "cannot start a maintainer: it scales pools through the fleet service; add --fleet",
            code="cli.fleet_required",
        )
    if unknown := sorted({*options.own_trainers} - recipe.policies.keys()):
        raise InvalidInput(
            f"cannot wait for the trainer of {', '.join(unknown)}: the recipe has the policies "
            f"{', '.join(recipe.policies)}; correct --own-trainer",
            code="cli.unknown_policy",
        )
    check_models(recipe)


def _print_summary(console: Console, summary: Summary, directory: RunDirectory, *, conversations: int) -> None:
    if summary.steps or not summary.failed:
        print_conversations(console, directory.path, count=conversations)
        console.print(summary_table(summary))
    if summary.failed:
        Console(stderr=True, highlight=False).print(Text(f"error: {summary.reason}"), soft_wrap=True)


def _write_settings(
    directory: RunDirectory, recipe: Recipe, addresses: ServiceAddresses, options: LocalRunOptions
) -> None:
    """Writes the facts of the run and the configurations of fleet and maintainer into its folder."""
    directory.update_facts(
        dataflow=addresses.dataflow,
        weights=addresses.weights,
        enroll=addresses.enroll,
        is_tls=addresses.is_tls,
        metrics=addresses.metrics_url,
        keda=keda_address(recipe),
        traces=traces_destination(recipe, directory.path),
        fleet=addresses.fleet if options.has_fleet else "",
    )
    if options.has_fleet:
        directory.write_fleet_config(fleet_values(recipe, run=directory.facts.run))
    if options.maintainer_kind:
        directory.write_maintainer_config(maintainer_values(recipe, kind=options.maintainer_kind))


def _loop_time(at: float) -> float:
    """Converts a time of `time.monotonic()` to the clock of the running event loop."""
    return asyncio.get_running_loop().time() + at - time.monotonic()


def _write_summary(file: Path, summary: Summary, directory: RunDirectory) -> None:
    content = {**asdict(summary), "run": asdict(directory.facts), "directory": str(directory.path)}
    try:
        file.write_text(json.dumps(content, indent=2) + "\n")
    except OSError as problem:
        raise storage_error(problem, f"the summary file {file}") from None
