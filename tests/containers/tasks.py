"""Terminal tasks and agents in containers of the real engine, through the parts of AstraFlow that use `docker` or
`podman`."""

import asyncio
import os
import shlex
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from astraflow.conformance.workflows import ConstantReward
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.datasets import datasets
from astraflow.datasets.worlds.terminal import SAMPLE_TASKS
from astraflow.environments import environments
from astraflow.environments.base import Environment, EnvironmentFactory
from astraflow.environments.episodes import Expert, play, total_reward
from astraflow.runtime.plugins import start_managed
from astraflow.workflows import workflows
from astraflow.workflows.base import RewardScorer, Workflow
from astraflow.workflows.scripted.policies import EpisodeRecord, ScriptedPolicy, in_order
from tests import make
from tests.containers.checks import require
from tests.containers.engine import Engine
from tests.containers.stack import CheckFailed
from tests.environments.experts import solver

TASK_BASE = "docker.io/library/debian:bookworm-slim"
"""Image that the packaged tasks build on."""

COMMAND_S = 5.0
"""Time limit of the command that hangs; the others have the default, which a busy machine needs. Seconds."""

SOME_EVERY = 4
"""Plays every fourth task where another check plays all: `docker` plays all solutions, and the tests of the sandbox all
tasks without an action."""

AGENTS = 4
"""Agents at the same time."""

AGENT = """
import json, os, socket, sys, urllib.request
reached, port = [], int(sys.argv[2])
for address in [("127.0.0.1", port), ("172.17.0.1", port), ("10.0.2.2", port), ("10.0.2.3", 53), ("1.1.1.1", 53)]:
    try:
        socket.create_connection(address, timeout=1).close()
        reached.append(address)
    except OSError:
        pass
names = [name for _, name in socket.if_nameindex()]
assert not reached and names == ["lo"] and not os.path.exists("/run/astraflow"), (reached, names)
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps({"model": "any", "messages": [{"role": "user", "content": sys.argv[1]}]}).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
open("reward.txt", "w").write(str(float(answer == "dcba")))
"""
"""Agent that first tries other addresses: of the node, the engine's bridge, its gateway and name server, and beyond."""


@dataclass(kw_only=True)
class TaskChecks:
    """Steps and their observations. program: `docker` or `podman`. base: image with Bash and Python. say: called with
    each figure."""

    engine: Engine
    program: str
    base: str
    say: Callable[[str], None]
    figures: list[str] = field(default_factory=list)

    def run(self) -> str:
        """Runs all steps. Returns the figures in one line. Raises: CheckFailed, CommandFailed."""
        self.engine.run(self.program, "tag", self.base, TASK_BASE)
        tasks = self.engine.state / "tasks"
        shutil.copytree(SAMPLE_TASKS, tasks, dirs_exist_ok=True)
        with _program_of(self.engine, self.program):
            asyncio.run(self._terminals(tasks))
            asyncio.run(self._agents())
        left = self.engine.output(self.program, "ps", "--all", "--quiet").split()
        require(not left, f"{len(left)} containers are left")
        return "; ".join(self.figures)

    async def _terminals(self, tasks: Path) -> None:
        spec = {"kind": "terminal", "path": str(tasks), "runner": self.program}
        async with AsyncExitStack() as resources:
            factory, limited = environments.build(spec), environments.build({**spec, "command_s": COMMAND_S})
            await start_managed([factory, limited], resources)
            await factory.check()
            every = 1 if self.program == "docker" else SOME_EVERY
            await self._episodes(factory, tasks, solver, reward=1.0, name="their solutions", every=every)
            await self._episodes(factory, tasks, lambda *_: "submit", reward=0.0, name="no action", every=SOME_EVERY)
            await self._faults(limited, tasks)

    async def _episodes(
        self, factory: EnvironmentFactory, tasks: Path, expert: Expert, *, reward: float, name: str, every: int = 1
    ) -> None:
        """Plays every n-th task once. Raises: CheckFailed with what the container answered, when one gets another
        reward."""
        began = time.monotonic()
        dataset = datasets.build({"kind": "terminal", "path": str(tasks)}, 0)
        wrong, numbers = [], range(0, dataset.size, every)
        for prompt in map(dataset.prompt, numbers):
            observations = await play(factory, prompt, 0, expert)
            if total_reward(observations) != reward:
                answers = [observation.text[-300:] for observation in observations[1:]]
                wrong.append(f"{prompt.fields['task']} got {total_reward(observations):g} after the answers {answers}")
        solved = len(wrong) if reward == 0 else len(numbers) - len(wrong)
        self._note(f"{solved} of {len(numbers)} tasks are solved by {name}", began)
        require(not wrong, f"wrong rewards for {name}: {'; '.join(wrong)}")

    async def _faults(self, factory: EnvironmentFactory, tasks: Path) -> None:
        """Floods, hangs and a killed container end within their limits, and the next episode works."""
        prompt = datasets.build({"kind": "terminal", "path": str(tasks)}, 0).prompt(0)
        environment = factory.make()
        try:
            await environment.begin(prompt, 0)
            await self._fault(environment)
        finally:
            await environment.close()
        (*_, last) = await play(factory, prompt, 0, solver)
        require(last.ending is Ending.WON, "the episode after a killed container is not won")

    async def _fault(self, environment: Environment) -> None:
        interfaces = await environment.act("cat /proc/net/dev | tail -n +3 | cut -d: -f1")
        require(interfaces.text.split() == ["lo"], f"a container has the interfaces {interfaces.text!r}")
        flood = await environment.act("yes flood | head -c 10000000")
        require(0 < len(flood.text) < 100_000, f"10 MB of output became {len(flood.text)} characters")
        began = time.monotonic()
        await environment.act("sleep 1000")
        self._note(f"a command that hangs is stopped after {COMMAND_S:g} s", began)
        require(time.monotonic() - began < 30, "a command that hangs is not stopped in time")
        forged = await environment.act("echo Error response from daemon >&2; exit 1")
        require("exit status 1" in forged.text, f"a command that fails was answered {forged.text!r}")
        program = f"/usr/bin/{self.program}"  # the name alone leads to the script of `_program_of`
        (container,) = self.engine.output(program, "ps", "--quiet").split()
        self.engine.run(program, "kill", container)
        try:
            answer = await environment.act("echo on")
        except RolloutFailed as problem:
            require(problem.boundary is Boundary.ENVIRONMENT, f"a killed container fails at {problem.boundary}")
        else:
            raise CheckFailed(f"a killed container answered {answer.text!r}")

    async def _agents(self) -> None:
        """Agents without a network get the replies of the policy, and reach no other address."""
        with _listener() as port:
            program = {
                "kind": "container",
                "runner": self.program,
                "image": self.base,
                "command": ["python3", "-c", AGENT, "{question}", str(port)],
            }
            workflow = workflows.build(
                {"kind": "agent", "program": program, "score": {"by": "file", "path": "reward.txt"}}
            )
            async with AsyncExitStack() as resources:
                await start_managed((workflow,), resources)
                began = time.monotonic()
                rewards = await asyncio.gather(*(_rewarded(workflow, member) for member in range(AGENTS)))
        require(set(rewards) == {1.0}, f"agents got the rewards {rewards}")
        self._note(f"{AGENTS} agents at once reached the model calls and nothing else", began)

    def _note(self, figure: str, began: float) -> None:
        self.figures.append(f"{self.program}: {figure} ({time.monotonic() - began:.0f} s)")
        self.say(self.figures[-1])


async def _rewarded(workflow: Workflow, member: int) -> float:
    policies = {policy: ScriptedPolicy(policy, EpisodeRecord(reply=in_order("dcba"))) for policy in workflow.policies}
    (trajectory,) = await workflow.run(make.task(member=member), policies, RewardScorer(ConstantReward()))
    return trajectory.reward


@contextmanager
def _program_of(engine: Engine, name: str) -> Iterator[None]:
    """Provides the program `docker` or `podman` of an engine to this process, and temporary files that it sees."""
    program = engine.state / "bin" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {shlex.join(engine.beside())} /usr/bin/{name} "$@"\n')
    program.chmod(0o755)
    files = engine.state / "files"
    files.mkdir(exist_ok=True)
    path, temporary = os.environ["PATH"], tempfile.tempdir
    os.environ["PATH"], tempfile.tempdir = f"{program.parent}:{path}", str(files)
    try:
        yield
    finally:
        os.environ["PATH"], tempfile.tempdir = path, temporary


@contextmanager
def _listener() -> Iterator[int]:
    """Provides a port of this machine's loopback on which connections are accepted."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]
