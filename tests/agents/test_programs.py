"""Programs of agents that run as commands, in containers, and as services."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from inspect import getsource
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import ClientSession, web

from astraflow.agents.programs.base import AgentTask
from astraflow.agents.programs.commands import CommandFields, command_of
from astraflow.conformance.workflows import ConstantReward, WorkflowCheck
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.trajectories import Ending, Trajectory
from astraflow.runtime.plugins import start_managed
from astraflow.sandbox import forwarding
from astraflow.sandbox.base import SandboxError
from astraflow.sandbox.isolation import find_python
from astraflow.testing.plugins import WorkflowSuite
from astraflow.workflows import workflows
from astraflow.workflows.base import RewardScorer, Workflow
from astraflow.workflows.scripted.policies import EpisodeRecord, ScriptedPolicy, in_order
from tests import make
from tests.errors import raises_code
from tests.fakes import docker_command

pytestmark = pytest.mark.anyio

AGENT = """
import json, os, sys, urllib.request
task = json.load(open("task.json"))
question = sys.argv[1] if len(sys.argv) > 1 else sys.stdin.read()
assert task == {"question": question}, task
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps({"model": "any", "messages": [{"role": "user", "content": question}]}).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
open("answer.txt", "w").write(answer)
print(answer)
sys.exit(int(os.environ.get("STATUS", "0")))
"""
JUDGE = ("/usr/bin/python3", "-I", "-c", "import json, sys; given = json.load(sys.stdin)\n"
    "print('judged'); print(float(open('answer.txt').read() == given['fields']['answer']))")  # fmt: skip
LOOP = """
import os, time, urllib.request
print(os.getpid())
while True: time.sleep(1)
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def written(source: str) -> str:
        path = tmp_path / "agent.py"
        path.write_text(source)
        return str(path)

    return written


@asynccontextmanager
async def started(program: dict[str, Any], **options: Any) -> AsyncIterator[Workflow]:
    workflow = workflows.build({"kind": "agent", "program": program, **options})
    async with AsyncExitStack() as resources:
        await start_managed((workflow,), resources)
        yield workflow


async def episode(workflow: Workflow, reply: str = "dcba") -> Trajectory:
    record = EpisodeRecord(reply=in_order(reply))
    policies = {policy: ScriptedPolicy(policy, record) for policy in workflow.policies}
    (trajectory,) = await workflow.run(make.task(), policies, RewardScorer(ConstantReward()))
    return trajectory


def command(source: str, *arguments: str, **options: Any) -> dict[str, Any]:
    program = ["/usr/bin/python3", "-I", "agent.py", *arguments]
    return {"kind": "command", "command": program, "files": {"agent.py": source}, **options}


@pytest.mark.long
@pytest.mark.parametrize("reply", ["dcba", "abcd"])
async def test_a_command_in_the_sandbox_is_scored_by_another(script: Callable[[str], str], reply: str) -> None:
    program = command(script(AGENT), "{question}")
    async with started(program, score={"by": "command", "command": JUDGE}) as workflow:
        trajectory = await episode(workflow, reply)
    assert (trajectory.reward, trajectory.ending) == (float(reply == "dcba"), Ending.DONE)


async def test_a_command_reads_its_task_from_standard_input_and_is_scored_by_its_file(
    script: Callable[[str], str],
) -> None:
    program = command(script(AGENT), stdin="question")
    async with started(program, score={"by": "file", "path": "answer.txt"}) as workflow:
        assert (await episode(workflow, "0.5")).reward == 0.5


@pytest.mark.long
async def test_a_command_that_fails_or_never_ends(script: Callable[[str], str]) -> None:
    async with started(command(script(AGENT), "{question}", variables={"STATUS": "3"})) as workflow:
        with raises_code(RolloutFailed, "agent.program_failed", "exit status is 3"):
            await episode(workflow)
    async with started(command(script(LOOP)), max_seconds=0.3, exit_s=0.3) as workflow:
        with raises_code(RolloutFailed, "agent.program_failed", "time limit") as caught:
            await episode(workflow)  # without a call there is nothing to train
    assert caught.value.boundary is Boundary.WORKFLOW


async def test_a_judge_that_fails_is_a_failure_of_the_reward(script: Callable[[str], str]) -> None:
    score = {"by": "command", "command": ["sh", "-c", "echo broken >&2; exit 1"]}
    async with started(command(script(AGENT), "{question}"), score=score) as workflow:
        with raises_code(RolloutFailed, "agent.invalid_reward") as caught:
            await episode(workflow)
    assert caught.value.boundary is Boundary.REWARD


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ({"sandbox": {"kind": "local", "level": "restricted"}}, "agent.sandbox_too_weak"),
        ({"files": {"a.txt": "/no/such/file"}}, "agent.unreadable_file"),
    ],
)
async def test_a_command_that_cannot_work_is_refused_at_start(program: dict[str, Any], code: str) -> None:
    with raises_code(AstraFlowError, code):
        async with started({"kind": "command", "command": ["true"], **program}):
            pass


def test_a_command_gets_fields_by_name() -> None:
    options = CommandFields(command=("x", '{"a": "{question}"} {other} {n}'), stdin="task", has_field_variables=True)
    task = AgentTask(
        fields={"question": "what {n}?", "n": 3}, base_url="", api_key="", models=(), environment={"KEY": "k"}, port=1,
        seed=0,
    )  # fmt: skip
    built = command_of(options, task, {})
    assert built.arguments == ("x", '{"a": "what {n}?"} {other} 3')
    assert built.environment == {"TASK_QUESTION": "what {n}?", "TASK_N": "3", "KEY": "k"}
    assert json.loads(built.stdin) == json.loads(built.files["task.json"]) == {"question": "what {n}?", "n": 3}


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder of an executable that acts as Docker, with the log of its calls."""
    folder = tmp_path / "docker"
    program = folder / "bin" / "docker"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{docker_command.__file__}" "{folder}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return folder


@pytest.mark.parametrize("shares_network", [False, True])
async def test_an_agent_runs_in_a_container(docker: Path, shares_network: bool) -> None:
    program = {
        "kind": "container",
        "image": "agents:1",
        "relay_image": "relays:1",
        "folder": "/app",
        "shares_network": shares_network,
        "command": [sys.executable, "-S", "-c", AGENT, "{question}"],
    }
    async with started(program, score={"by": "command", "command": list(JUDGE)}) as workflow:
        assert (await episode(workflow)).reward == 1.0
    calls = [json.loads(line) for line in (docker / "calls.jsonl").read_text().splitlines()]
    networks = [call[call.index("--network") + 1] for call in calls if call[0] == "run"]
    assert networks == (["host"] if shares_network else ["none", "container:container-0"])
    assert [("--volume" in call, "relays:1" in call) for call in calls if call[0] == "run"][1:] == [
        (True, True) for _ in networks[1:]
    ]
    assert "sk-" not in json.dumps(calls)  # secrets are no arguments
    assert calls[-1][0] == "rm"
    assert not list(docker.glob("container-*"))


@pytest.mark.parametrize(("is_relayed", "boundary"), [(True, Boundary.WORKFLOW), (False, Boundary.ENVIRONMENT)])
async def test_an_agent_that_fails_after_its_relay_was_lost_is_a_failure_of_the_place(
    docker: Path, is_relayed: bool, boundary: Boundary
) -> None:
    lost = "true" if is_relayed else f"rm -r {docker}/container-1"
    program = {"kind": "container", "image": "x", "folder": "/app", "command": ["sh", "-c", f"{lost}; exit 3"]}
    async with started(program) as workflow:
        with pytest.raises(RolloutFailed) as caught:
            await episode(workflow)
    assert caught.value.boundary is boundary


@pytest.mark.long
async def test_the_relay_of_a_container_forwards_its_port_to_a_unix_socket(tmp_path: Path) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    path = str(tmp_path / "calls")
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    server = await asyncio.start_unix_server(greet, path)
    relay = await asyncio.create_subprocess_exec(sys.executable, "-I", "-c", getsource(forwarding), str(port), path)
    assert await relay.wait() == 0  # it listens, in the background
    try:
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read() == b"hello"
            writer.close()
    finally:
        (left,) = [child for child in psutil.process_iter(["cmdline"]) if path in (child.info["cmdline"] or ())]
        left.kill()
        server.close()


@pytest.mark.parametrize("verb", ["run", "cp"])
async def test_a_container_that_does_not_work_is_a_failure_of_the_place(docker: Path, verb: str) -> None:
    program = {"kind": "container", "image": "x", "folder": "/app", "command": ["true"]}
    (docker / f"fail-{verb}").touch()
    async with started(program) as workflow:
        with pytest.raises(RolloutFailed) as caught:
            await episode(workflow)
    assert caught.value.boundary is Boundary.ENVIRONMENT


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def served(**handlers: Handler) -> AsyncIterator[str]:
    app = web.Application()
    for name, handler in handlers.items():
        app.router.add_route("*", f"/{name}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def ask(task: dict[str, Any]) -> str:
    body = {"model": task["models"][0], "messages": [{"role": "user", "content": task["fields"]["question"]}]}
    async with (
        ClientSession(headers={"Authorization": f"Bearer {task['api_key']}"}) as client,
        client.post(f"{task['base_url']}/chat/completions", json=body) as reply,
    ):
        return str((await reply.json())["choices"][0]["message"]["content"])


async def test_a_service_answers_when_its_agent_has_ended() -> None:
    async def begin(request: web.Request) -> web.Response:
        return web.json_response({"reward": float(await ask(await request.json()) == "dcba")})

    async with (
        served(begin=begin) as url,
        started({"kind": "endpoint", "url": f"{url}/begin"}, score={"by": "value"}) as workflow,
    ):
        assert (await episode(workflow)).reward == 1.0


async def test_a_service_is_asked_again_until_its_agent_has_ended() -> None:
    requests: list[str] = []
    task: dict[str, Any] = {}

    async def begin(request: web.Request) -> web.Response:
        task.update(await request.json())
        return web.Response(status=202, headers={"Location": "/result"})

    async def result(request: web.Request) -> web.Response:
        requests.append(request.method)
        if len(requests) < 3:
            return web.Response(status=202)
        return web.json_response({"reward": float(await ask(task) == "dcba")})

    async with served(begin=begin, result=result) as url:
        program = {"kind": "endpoint", "url": f"{url}/begin", "poll_s": 0.01}
        async with started(program, score={"by": "value"}) as workflow:
            assert (await episode(workflow)).reward == 1.0
    assert requests == ["GET"] * 3


async def test_an_agent_of_a_service_is_deleted_at_its_time_limit() -> None:
    requests: list[str] = []

    async def begin(request: web.Request) -> web.Response:
        await ask(await request.json())
        return web.Response(status=202, headers={"Location": "/result"})

    async def result(request: web.Request) -> web.Response:
        requests.append(request.method)
        return web.Response(status=202)

    async with served(begin=begin, result=result) as url:
        program = {"kind": "endpoint", "url": f"{url}/begin", "poll_s": 0.1}
        async with started(program, max_seconds=0.5, exit_s=0.1) as workflow:
            trajectory = await episode(workflow)
    assert (trajectory.reward, trajectory.ending) == (0.0, Ending.BUDGET)
    assert requests[-1] == "DELETE"


async def test_a_service_that_fails() -> None:
    async def broken(request: web.Request) -> web.Response:
        await ask(await request.json())
        return web.Response(status=500, text="my defect")

    async def elsewhere(request: web.Request) -> web.Response:
        return web.Response(status=202, headers={"Location": "http://192.0.2.1/x"})

    async with served(broken=broken, elsewhere=elsewhere) as url:
        async with started({"kind": "endpoint", "url": f"{url}/broken"}) as workflow:
            with raises_code(RolloutFailed, "agent.program_failed", "my defect"):
                await episode(workflow)
        async with started({"kind": "endpoint", "url": f"{url}/elsewhere"}) as workflow:
            with raises_code(RolloutFailed, "agent.endpoint_failed", "192.0.2.1"):
                await episode(workflow)
    async with started({"kind": "endpoint", "url": f"{url}/gone"}) as workflow:
        with raises_code(RolloutFailed, "agent.endpoint_failed") as caught:
            await episode(workflow)
    assert caught.value.boundary is Boundary.ENVIRONMENT


@pytest.mark.long
class TestCommandConformance(WorkflowSuite):
    @pytest.fixture
    def subject(self, script: Callable[[str], str]) -> Callable[[], WorkflowCheck]:
        program = command(script(AGENT), "{question}")
        return lambda: WorkflowCheck(
            spec={"kind": "agent", "program": program}, prompt=make.prompt(), reply=in_order("dcba")
        )


@pytest.mark.long
async def test_a_command_uses_the_sdk_of_an_environment_that_it_can_only_read(script: Callable[[str], str]) -> None:
    packages = str(Path(sysconfig.get_paths()["purelib"]).resolve())
    interpreter = find_python("", user=65534 if os.geteuid() == 0 else None)
    release = subprocess.run([interpreter, "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    if release.split(".")[:2] != sys.version.split(".")[:2]:
        pytest.skip("the interpreter of jobs has another release than these packages")
    source = (
        "import sys\nfrom openai import OpenAI\n"
        "try: open(f'{sys.argv[1]}/written', 'w')\nexcept OSError: pass\nelse: sys.exit(1)\n"
        "message = {'role': 'user', 'content': 'rev abcd='}\n"
        "print(OpenAI().chat.completions.create(model='x', messages=[message]).choices[0].message.content)"
    )
    program = {
        "kind": "command",
        "command": [interpreter, "agent.py", packages],
        "files": {"agent.py": script(source)},
        "variables": {"PYTHONPATH": packages},
        "sandbox": {"kind": "local", "readable_paths": [packages]},
    }
    score = {"by": "reward", "text": "stdout"}
    try:
        async with started(program, score=score) as workflow:
            trajectory = await episode(workflow)
    except SandboxError as problem:
        if "sandbox.unreadable_path" not in str(problem.code) and "cannot show" not in str(problem):
            raise
        pytest.skip("the jobs' user cannot read the packages of this interpreter")
    assert (trajectory.reward, trajectory.ending) == (0.5, Ending.DONE)
