"""Terminals, in which a policy does the tasks of the dataset `terminal` with shell commands."""

import re
from contextlib import AsyncExitStack
from typing import Annotated, Any, Literal

from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.datasets.worlds.terminal import TaskFolderOptions, TerminalStep, TerminalTask, load_task
from astraflow.environments import environments
from astraflow.environments.base import Environment, EnvironmentLimits, Observation
from astraflow.environments.container_engine import OutOfResources
from astraflow.environments.container_limits import Capability
from astraflow.environments.terminal.containers import ContainerRunner
from astraflow.environments.terminal.kubernetes import KubernetesRunner, PodOptions
from astraflow.environments.terminal.runners import SandboxRunner, TerminalRunner, TerminalSession
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.plugins import ManagedPlugin
from astraflow.sandbox import sandboxes
from astraflow.sandbox.base import JobResult, Outcome, SandboxError

SUBMIT = "submit"
"""Action that ends the episode and runs the tests."""

_FENCED = re.compile(r"```(?:bash|sh|shell)?\n(.*?)```", re.DOTALL)
_TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")
_MAX_COMMAND_CHARS = 100_000


class TerminalOptions(TaskFolderOptions):
    """Location of the tasks, and the sandbox that runs them."""

    runner: Annotated[Literal["sandbox", "docker", "podman", "kubernetes"], SettableBy.RECIPE] = "sandbox"
    """`sandbox` runs tasks whose Dockerfile only copies files; `docker` and `podman` build and run images with the
    program of this name; `kubernetes` runs images that tasks name in pods, with the program `kubectl`."""
    sandbox: Annotated[dict[str, Any], SettableBy.RECIPE, sandboxes] = Field(default_factory=lambda: {"kind": "local"})
    """Sandbox of the runner `sandbox`."""
    has_network: Annotated[bool, SettableBy.RECIPE] = False
    """Containers reach the network, which the tests of many published tasks need. The policy does so too."""
    capabilities: Annotated[tuple[Capability, ...], SettableBy.RECIPE] = ()
    """Linux capabilities of root in containers; it has no others. Tasks that install Debian packages need `CHOWN`,
    `DAC_OVERRIDE`, `FOWNER`, `SETGID` and `SETUID`."""
    namespace: Annotated[str, SettableBy.RECIPE] = ""
    """Namespace of the pods; empty: that of the node's configuration of kubectl."""
    runtime_class: Annotated[str, SettableBy.RECIPE] = ""
    """RuntimeClass of the pods, such as `gvisor`; empty: the cluster's default."""
    lifetime_s: float = Field(default=7200.0, ge=60, le=864_000)
    """Time after which the cluster ends a pod, also when its node was lost. Seconds."""
    concurrency: int = Field(default=8, ge=1, le=1024)
    """Tasks at once on a node."""
    command_s: Annotated[float, SettableBy.AGENT] = Field(default=30.0, gt=0, le=3600)
    """Timeout of a command, in seconds; the shell is restarted then."""
    max_output_chars: int = Field(default=10_000, ge=100, le=900_000)
    """Longer output is cut in its middle. Characters."""


@environments.register("terminal", options=TerminalOptions)
class TerminalFactory:
    """Gives the policy a shell in the working directory of a task. An action is a command: the last fenced block of an
    answer, or all of it. `submit` ends the episode, and the tests of the task give the reward."""

    def __init__(self, options: TerminalOptions) -> None:
        self._options = options
        self._runner = _runner_of(options)
        self.limits = EnvironmentLimits(
            concurrency=options.concurrency, begin_s=1200.0, act_s=max(1800.0, options.command_s + 60)
        )

    async def start(self) -> None:
        """Starts the runner. Raises: SandboxError."""
        if isinstance(self._runner, ManagedPlugin):
            await self._runner.start()

    async def close(self) -> None:
        """Stops the runner."""
        if isinstance(self._runner, ManagedPlugin):
            await self._runner.close()

    def make(self) -> Environment:
        """Returns a new terminal."""
        return TerminalEnvironment(self._options, self._runner)

    async def check(self) -> None:
        """Checks for the folder of tasks and the runner. Raises: InvalidInput, Unavailable."""
        _check_folder(self._options)
        await self._runner.check()


class TerminalEnvironment:
    """Terminal of one task."""

    def __init__(self, options: TerminalOptions, runner: TerminalRunner) -> None:
        self._options = options
        self._runner = runner
        self._resources = AsyncExitStack()
        self._session: TerminalSession | None = None
        self._task: TerminalTask | None = None
        self._steps: list[TerminalStep] = []
        """Steps that are not over; the first one is that of the policy."""
        self._reward = 0.0
        """Reward of the steps that are over."""
        self._last: Observation | None = None

    async def begin(self, prompt: Prompt, seed: int) -> Observation:
        """Opens the terminal; the seed changes nothing. Raises: InvalidInput; RolloutFailed."""
        del seed
        name = prompt.fields.get("task")
        if not isinstance(name, str) or not _TASK_NAME.fullmatch(name):
            raise InvalidInput(
                f"cannot open a terminal: prompt {str(prompt.id)!r} has the task {name!r}; use the dataset 'terminal'",
                code="environment.wrong_prompt",
            )
        self._task = load_task(self._options.folder / name)
        try:
            self._session = await self._resources.enter_async_context(self._runner.open(self._task))
            setup = await self._session.proceed(self._task.steps[0])
        except SandboxError as problem:
            raise _failure(problem) from problem
        if setup is not None and setup.outcome is not Outcome.PASSED:
            raise _setup_failed(self._task, setup)
        self._steps = list(self._task.steps)
        return Observation(text=f"{self._task.instruction}\n\nAnswer with one shell command, or with: {SUBMIT}")

    async def act(self, action: str) -> Observation:
        """Runs a command, or the tests. A container that the policy's programs ended by using up its memory or disk
        loses the episode. Raises: InvalidInput before `begin`; RolloutFailed when the runner fails."""
        if self._session is None or self._task is None:
            raise InvalidInput("cannot act: the terminal is not open; call begin first", code="environment.not_begun")
        if self._last is not None:
            return self._last
        command = command_of(action)
        if not command:
            return Observation(
                text=f"Cannot read a command of at most {_MAX_COMMAND_CHARS} characters.", is_malformed=True
            )
        try:
            if command == SUBMIT:
                return await self._submitted(self._session, self._task)
            return self._answer(await self._session.run(command, timeout_s=self._options.command_s))
        except OutOfResources:
            text = "The task is over: the container has no memory or disk left."
            self._last = Observation(text=text, reward=0.0, ending=Ending.LOST)
            return self._last
        except SandboxError as problem:
            raise _failure(problem) from problem

    async def close(self) -> None:
        """Ends the shell and what it runs."""
        self._session = None
        await self._resources.aclose()

    def _answer(self, result: JobResult) -> Observation:
        output = _shortened(f"{result.stdout}{result.stderr}".strip(), self._options.max_output_chars)
        ends = {
            Outcome.PASSED: "",
            Outcome.FAILED: f"[exit status {result.exit_status}]",
            Outcome.TIMEOUT: f"[stopped after {self._options.command_s:g} s; the shell was restarted]",
            Outcome.MEMORY: "[stopped: out of memory]",
            Outcome.CRASHED: "[killed by a signal]",
        }
        return Observation(text="\n".join(part for part in (output, ends[result.outcome]) if part) or "[no output]")

    async def _submitted(self, session: TerminalSession, task: TerminalTask) -> Observation:
        """Ends a step by its tests; returns the instruction of the next one, or the end."""
        step, *later = self._steps
        self._last = Observation(text="The task is over.", ending=Ending.LOST)
        verdict = await session.verify(step)
        share = 1.0 if task.is_reward_of_last_step else 1.0 / len(task.steps)
        is_over = not later or verdict.reward < step.min_reward
        if not is_over:
            setup = await session.proceed(later[0])
            is_over = setup is not None and setup.outcome is not Outcome.PASSED  # the policy's files are the cause
        reward = verdict.reward * share if is_over or not task.is_reward_of_last_step else 0.0
        self._reward += reward
        is_won = is_over and not later and self._reward >= 1 - 1e-9
        if not is_over:
            self._last, self._steps = None, later
        return Observation(
            text="The tests have run." if is_over else f"The next step:\n\n{later[0].instruction}",
            reward=reward,
            ending=(Ending.WON if is_won else Ending.LOST) if is_over else None,
            state=_shortened(verdict.output, self._options.max_output_chars),
            metrics={"verifier_timeout": float(verdict.is_timeout), "steps": float(len(task.steps) - len(later))},
        )


def command_of(action: str) -> str:
    """Returns the command of an answer; empty when there is none.

    >>> command_of("First I look around:\\n```bash\\nls -l\\n```")
    'ls -l'
    """
    if len(action) > _MAX_COMMAND_CHARS or "\0" in action:
        return ""
    blocks = _FENCED.findall(action)
    return str(blocks[-1] if blocks else action).strip()


def _runner_of(options: TerminalOptions) -> TerminalRunner:
    if options.runner == "sandbox":
        return SandboxRunner(options.sandbox)
    if options.runner == "kubernetes":
        return KubernetesRunner(
            PodOptions(
                namespace=options.namespace,
                runtime_class=options.runtime_class,
                lifetime_s=options.lifetime_s,
                has_network=options.has_network,
                capabilities=options.capabilities,
            )
        )
    return ContainerRunner(options.runner, has_network=options.has_network, capabilities=options.capabilities)


def _check_folder(options: TerminalOptions) -> None:
    folder = options.folder
    if not folder.is_dir():
        raise InvalidInput(
            f"cannot use terminal tasks: {str(folder)!r} is no folder on this machine; copy the tasks to each node",
            code="environment.no_folder",
        )


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def _setup_failed(task: TerminalTask, setup: JobResult) -> RolloutFailed:
    return RolloutFailed(
        f"cannot begin the terminal task {task.name!r}: its setup.sh ended with {setup.outcome.value}: "
        f"{setup.stderr.strip()[-300:]!r}; correct it",
        boundary=Boundary.ENVIRONMENT,
        code="environment.setup_failed",
    )


def _failure(problem: SandboxError) -> RolloutFailed:
    return RolloutFailed(str(problem), boundary=Boundary.ENVIRONMENT, code=problem.code)
