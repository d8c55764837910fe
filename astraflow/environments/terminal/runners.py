"""Interface of runners of terminal tasks, and the runner in a sandbox."""

import base64
import io
import math
import re
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from inspect import getsource
from pathlib import Path
from typing import Any, Protocol

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.datasets.worlds.terminal import TerminalStep, TerminalTask, files_below, task_file
from astraflow.environments.terminal import policy_programs, supervisor, traced_process
from astraflow.runtime.untrusted_json import parsed_json
from astraflow.sandbox.base import Command, JobLimits, JobResult, Outcome, Session
from astraflow.sandbox.shared import SharedSandbox

_OUTPUT_BYTES = 2**20
_TREE_BYTES = 16 * 2**20
"""Limit of the working directory that is copied for the tests, as text of an archive."""
_TRANSFER_S = 60.0
_REWARD_BYTES = 4096
REWARD_FILES = ("reward.txt", "reward.json")
"""Files with the reward in the folder `verifier` of the logs: a number, or an object with `reward`."""
_COPIED = re.compile(r"COPY\s+([\w./-]+)\s+([\w./-]+)")
_WITHOUT_EFFECT = re.compile(r"(?:FROM|LABEL|WORKDIR|CMD|#).*|")

_PREPARE = (
    'export APP_DIR="$HOME/app" TESTS_DIR="$HOME/tests" LOGS_DIR="$HOME/logs" LC_ALL=C.UTF-8; '
    'mkdir -p "$LOGS_DIR/verifier"; cd "$APP_DIR"'
)
"""Home is the session's own folder at each level of isolation."""
_PACK = r'set -o pipefail; tar -cf - -C "$HOME/app" --transform "s|^$HOME/app\(/\|\$\)|/app\1|" . | base64 -w 0'
_UNPACK = (
    'set -o pipefail; mkdir -p "$0"; '
    r'base64 -d | tar -xpf - -C "$0" --no-same-owner --transform "s|^/app\(/\|\$\)|$HOME/app\1|"'
)
"""Links to the session's own folder lead to that of the next session, which has another path without namespaces."""
PLACE_LINKS = r"""
[ -f "$0" ] && exit 0
cd "$0" && find . ! -type f ! -type d ! -type l -delete && find . -type l -exec sh -c '
    for link do
        case "$(realpath -m -- "$link")/" in
            "$0"/* | /usr/* | /bin/* | /sbin/* | /lib* | /etc/* | /opt/* | /dev/null/) ;;
            *) rm -f -- "$link" ;;
        esac
    done' "$(realpath .)" {} +
"""
"""Removes what tests may not follow: links that lead out of the folder `$0` to other places than the system's, and
everything but files and folders."""
_OWN_IMPORT = re.compile(r"^from astraflow\.(?:[^(\n]*|[^(\n]*\([^)]*\))\n", re.MULTILINE)
_VERIFY = """
import os
home = os.environ["HOME"]
folders = {name: os.path.join(home, name) for name in ("app", "tests", "logs", "home", "tmp")}
for name in ("logs/verifier", "home", "tmp"):
    os.makedirs(os.path.join(home, name), exist_ok=True)
os.environ.update(APP_DIR=folders["app"], TESTS_DIR=folders["tests"], LOGS_DIR=folders["logs"], LC_ALL="C.UTF-8")
os.environ.update(HOME=folders["home"], TMPDIR=folders["tmp"])
os.chdir(folders["app"])
test = os.path.join(folders["tests"], "test.sh")
raise SystemExit(main([folders["app"]], [folders["tests"], folders["logs"]], ["bash", test]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of the tests of a task."""

    reward: float
    output: str
    is_timeout: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    """End of the tests of a task, before it is judged."""

    __test__ = False
    """No test of pytest."""
    result: JobResult
    written: str
    """Text of the file with the reward; empty without one."""

    @property
    def output(self) -> str:
        """Standard output and error."""
        return f"{self.result.stdout}{self.result.stderr}"

    @property
    def reward(self) -> float | None:
        """Reward: what was written, if the tests ended with exit status 0, else 0. None when no number in 0 to 1 was
        written."""
        if self.result.outcome is Outcome.TIMEOUT:
            return 0.0
        reward = _number_in(self.written)
        if not 0 <= reward <= 1:
            return None
        return reward if self.result.outcome is Outcome.PASSED else 0.0


def _number_in(text: str) -> float:
    """Returns the reward in a file; NaN for anything else.

    >>> _number_in("0.5"), _number_in('{"reward": 1, "speed": 3}')
    (0.5, 1.0)
    """
    try:
        if not text.lstrip().startswith("{"):
            return float(text)
        content = parsed_json(text, limit=_REWARD_BYTES)
        reward = content.get("reward") if isinstance(content, dict) else None
        return math.nan if isinstance(reward, bool) or not isinstance(reward, int | float) else float(reward)
    except (ValueError, OverflowError):
        return math.nan


class TerminalSession(Protocol):
    """Shell of one episode."""

    async def run(self, command: str, *, timeout_s: float) -> JobResult:
        """Runs a command. Raises: SandboxError."""

    async def verify(self, step: TerminalStep) -> Verdict:
        """Ends or freezes everything that the commands started, and runs the tests of a step on the files that they
        left, in a place which they never reached. Raises: SandboxError; RolloutFailed when the tests write no reward
        whatever the policy did."""

    async def proceed(self, step: TerminalStep) -> JobResult | None:
        """Continues with a step: adds its files to the working directory, and returns the result of its `setup.sh`, if
        it has one. Raises: SandboxError."""


class TerminalRunner(Protocol):
    """Runs terminal tasks. A `ManagedPlugin` when it owns processes."""

    def open(self, task: TerminalTask) -> AbstractAsyncContextManager[TerminalSession]:
        """Prepares the files of a task and opens a shell. Raises: InvalidInput for a task that the runner cannot run;
        SandboxError."""

    async def check(self) -> None:
        """Checks that the runner works on this machine. Raises: InvalidInput or Unavailable with the remedy."""


class Judge:
    """Judges runs of tests. One without a reward is the fault of the tests only if they write none for the files of the
    task either, and no episode was won; otherwise what the policy left caused it, which scores 0."""

    def __init__(self) -> None:
        self._sound: set[tuple[Path, str]] = set()
        """Folders and steps of the tasks whose tests have written a reward: for the files of the task, or one above
        0."""

    async def verdict(
        self, task: TerminalTask, step: TerminalStep, run: TestRun, untouched: Callable[[], Awaitable[TestRun]]
    ) -> Verdict:
        """Returns the verdict. untouched: runs the tests on the files of the task. Raises: RolloutFailed;
        SandboxError."""
        reward, tests = run.reward, (task.folder, step.name)
        if reward:
            self._sound.add(tests)
        if reward is None and tests not in self._sound:
            other = await untouched()
            if other.reward is None:
                raise _no_reward(task, other)
            self._sound.add(tests)
        return Verdict(reward=reward or 0.0, output=run.output, is_timeout=run.result.outcome is Outcome.TIMEOUT)


class SandboxRunner:
    """Runs tasks in sessions of a sandbox of AstraFlow. There is no image: the programs are those of the node, the
    working directory is `$HOME/app`, and the variables APP_DIR, TESTS_DIR and LOGS_DIR replace `/app`, `/tests` and
    `/logs`. Tests run in another session, to which the files are copied after everything of the policy has ended, and
    the supervisor confines programs of the policy that the tests start."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._sandbox = SharedSandbox(spec)
        self._judge = Judge()

    async def start(self) -> None:
        """Starts the sandbox. Raises: SandboxError."""
        await self._sandbox.start()

    async def close(self) -> None:
        """Ends the sandbox after its last user."""
        await self._sandbox.close()

    async def check(self) -> None:
        """Nothing to do: the sandbox checks itself when it starts."""

    def open(self, task: TerminalTask) -> AbstractAsyncContextManager[TerminalSession]:
        """Opens a session with the files of the task. Raises: InvalidInput for a task with services or separate
        tests."""
        if task.is_separate or task.services:
            raise _not_runnable(task, "it has services or separate tests")
        return self._opened(task, copied_files(task))

    @asynccontextmanager
    async def _opened(self, task: TerminalTask, files: Mapping[str, bytes]) -> AsyncIterator[TerminalSession]:
        session = _SandboxSession(self, task, archive_of(files))
        try:
            await session.begin()
            yield session
        finally:
            await session.close()

    def session(self, task: TerminalTask, *, may_trace: bool = False) -> AbstractAsyncContextManager[Session]:
        """Opens a session with the limits of a task."""
        limits = JobLimits(
            memory_bytes=task.memory_bytes, output_bytes=_OUTPUT_BYTES, processes=64, may_trace=may_trace
        )
        return self._sandbox.session(limits)

    async def judged(self, task: TerminalTask, step: TerminalStep, tree: str, untouched: str) -> Verdict:
        """Runs the tests of a step on a working directory, an archive in base64. untouched: the one of the task.
        Raises: RolloutFailed; SandboxError."""

        async def of_task() -> TestRun:
            return await self._tested(task, step, untouched)

        return await self._judge.verdict(task, step, await self._tested(task, step, tree), of_task)

    async def _tested(self, task: TerminalTask, step: TerminalStep, tree: str) -> TestRun:
        """Runs the tests of a step in a new session."""
        tests = base64.b64encode(archive_of(test_files(task, step))).decode()
        async with self.session(task, may_trace=True) as session:
            await _copied_into(session, "tests", tests)
            placed = await _bash(session, _UNPACK, "app", stdin=tree)
            if placed.outcome is Outcome.PASSED:
                placed = await _bash(session, PLACE_LINKS, "app")
            if placed.outcome is not Outcome.PASSED:
                return TestRun(result=placed, written="0")
            result = await session.python(supervisor_source() + _VERIFY, timeout_s=step.verifier_s)
            written = ""
            for name in REWARD_FILES:
                command = Command(arguments=("head", "-c", str(_REWARD_BYTES), "--", f"logs/verifier/{name}"))
                written = written or (await session.execute(command, timeout_s=_TRANSFER_S)).stdout
            return TestRun(result=result, written=written)


class _SandboxSession:
    def __init__(self, runner: SandboxRunner, task: TerminalTask, files: bytes) -> None:
        self._runner = runner
        self._task = task
        self._files = base64.b64encode(files).decode()
        self._left: JobResult | None = None
        """Packing of the working directory at the end of a step, as `_files`; None in the first step."""
        self._resources = AsyncExitStack()
        self._session: Session

    async def begin(self) -> None:
        """Opens the session with the files of the task. Raises: SandboxError; RolloutFailed."""
        await self._begin(self._files)

    async def _begin(self, tree: str) -> None:
        self._session = await self._resources.enter_async_context(self._runner.session(self._task))
        await _copied_into(self._session, "app", tree)
        await self._session.shell(_PREPARE)

    async def close(self) -> None:
        """Ends the session. Idempotent."""
        await self._resources.aclose()

    async def run(self, command: str, *, timeout_s: float) -> JobResult:
        """Runs a command; after a timeout, the new shell starts in the working directory."""
        result = await self._session.shell(command, timeout_s=timeout_s)
        if result.outcome is Outcome.TIMEOUT:
            await self._session.shell(_PREPARE)
        return result

    async def verify(self, step: TerminalStep) -> Verdict:
        """Ends the session, copies its working directory to a new one and runs the tests there."""
        await self._session.stop()
        self._left = packed = await _bash(self._session, _PACK, "app", output_bytes=_TREE_BYTES)
        await self.close()
        if packed.outcome is not Outcome.PASSED or packed.is_output_cut:
            cause = f"it has more than {_TREE_BYTES * 3 // 4} bytes, or files that cannot be read: {packed.stderr}"
            return Verdict(reward=0.0, output=f"The working directory cannot be copied: {cause}")
        return await self._runner.judged(self._task, step, packed.stdout, self._files)

    async def proceed(self, step: TerminalStep) -> JobResult | None:
        """Opens a session with the working directory that the last one left, and adds the files of a step."""
        if self._left is not None:
            if self._left.outcome is not Outcome.PASSED or self._left.is_output_cut:
                return replace(self._left, outcome=Outcome.FAILED, stdout="")
            await self._begin(self._left.stdout)
        if step.files:
            files = archive_of(files_below(self._task.folder, step.files))
            await _copied_into(self._session, "app", base64.b64encode(files).decode())
        if not step.has_setup:
            return None
        return await _bash(self._session, f'{_PREPARE}; exec bash "$APP_DIR/setup.sh"', "app")


def copied_files(task: TerminalTask) -> dict[str, bytes]:
    """Returns the files that the Dockerfile of a task copies, by path in the working directory.

    Raises: InvalidInput for a Dockerfile that does more than copying.
    """
    files: dict[str, bytes] = {}
    dockerfile = task_file(task.folder, "environment/Dockerfile")
    for line in (dockerfile or b"").decode(errors="replace").splitlines():
        match = _COPIED.fullmatch(line.strip())
        if match is None and _WITHOUT_EFFECT.fullmatch(line.strip()) is None:
            raise _not_runnable(task, f"its Dockerfile has {line.strip()!r}")
        if match is not None:
            files |= _copied(task, match[1], match[2])
    return files


def test_files(task: TerminalTask, step: TerminalStep) -> dict[str, bytes]:
    """Returns the files of the tests of a step, by path. Raises: InvalidInput."""
    files: dict[str, bytes] = {}
    for folder in step.tests:
        files |= files_below(task.folder, folder)
    return files


def _copied(task: TerminalTask, source: str, target: str) -> dict[str, bytes]:
    name = target.removeprefix("/app/").removeprefix("/app").removeprefix("./")
    path = str(Path("environment", source))
    is_inside = ".." not in Path(source).parts and not source.startswith("/")
    content = task_file(task.folder, path) if is_inside else None
    files = files_below(task.folder, path) if is_inside and content is None else {}
    if name.startswith("/") or ".." in Path(name).parts or (content is None and not files):
        raise _not_runnable(task, f"its Dockerfile copies {source!r} to {target!r}")
    if content is None:
        return {str(Path(name, inner)): inner_content for inner, inner_content in files.items()}
    is_folder = target.endswith(("/", ".")) or not name
    return {str(Path(name, Path(source).name) if is_folder else Path(name)): content}


def archive_of(files: Mapping[str, bytes]) -> bytes:
    """Returns a tar archive of files by path, all executable for their owner."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def supervisor_source() -> str:
    """Returns the source of the supervisor as one module, which has the function `main`."""
    sources = map(getsource, (policy_programs, traced_process, supervisor))
    return "".join(_OWN_IMPORT.sub("", source) for source in sources)


async def _copied_into(session: Session, folder: str, archive: str) -> None:
    """Unpacks an archive in base64 in a folder of the session. Raises: RolloutFailed when it has no room."""
    result = await _bash(session, _UNPACK, folder, stdin=archive)
    if result.outcome is not Outcome.PASSED:
        raise RolloutFailed(
            f"cannot copy files into the sandbox: {result.stderr[-300:]}; give it more disk_bytes",
            boundary=Boundary.ENVIRONMENT,
            code="environment.no_room",
        )


async def _bash(
    session: Session, script: str, folder: str, *, stdin: str = "", output_bytes: int | None = None
) -> JobResult:
    """Runs a script of this module, which no definition in the policy's shell reaches."""
    command = Command(arguments=("bash", "-c", script, folder), stdin=stdin)
    return await session.execute(command, timeout_s=_TRANSFER_S, output_bytes=output_bytes)


def _no_reward(task: TerminalTask, run: TestRun) -> RolloutFailed:
    return RolloutFailed(
        f"cannot score the terminal task {task.name!r}: its tests wrote the reward {run.written.strip()[:100]!r}, not "
        f"a number in 0 to 1, for the files of the task; correct tests/test.sh, which printed {run.output[-300:]!r}",
        boundary=Boundary.ENVIRONMENT,
        code="environment.no_reward",
    )


def _not_runnable(task: TerminalTask, cause: str) -> InvalidInput:
    return InvalidInput(
        f"cannot run the terminal task {task.name!r} in the sandbox: {cause}; use a runner with containers",
        code="environment.needs_container",
    )
