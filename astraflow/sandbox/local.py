"""Sandbox on this machine: a pool of warm fork servers, and sessions with a fork server each."""

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.logs import get_logger
from astraflow.sandbox import sandboxes
from astraflow.sandbox.base import Command, Job, JobLimits, JobResult, Level, Outcome, SandboxError, Session
from astraflow.sandbox.forwarding import forwarded
from astraflow.sandbox.isolation import Isolation
from astraflow.sandbox.options import LocalSandboxOptions
from astraflow.sandbox.worker import Worker, WorkerLost, remove_folder

log = get_logger()

_ATTEMPTS = 4
"""Workers that may die under one job before the job has no result."""
_STOP_S = 10.0
_LEVELS = (Level.NAMESPACES, Level.RESTRICTED, Level.NONE)
_PROBE = (
    "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-I', '-S', '-c', 'print(6 * 7)']).returncode)"
)


@sandboxes.register("local", options=LocalSandboxOptions)
class LocalSandbox:
    """Runs jobs in interpreters of this machine that are already started, each job in a fork.

    Every fork server is inside one bubblewrap, and every job in namespaces of its own, with Landlock, a system call
    filter and resource limits. Where this machine has no user namespaces, the last three remain.
    """

    def __init__(self, options: LocalSandboxOptions) -> None:
        self.reasons: dict[Level, str] = {}
        """Why each stronger level is not available here, known after `start`."""
        self._options = options
        self._level = Level.NONE
        self._folder: Path | None = None
        self._isolation: Isolation | None = None
        self._slots: asyncio.Queue[Worker | None] = asyncio.Queue()
        self._workers: set[Worker] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._user: int | None = None

    @property
    def level(self) -> Level:
        """Isolation, known after `start`."""
        return self._level

    async def start(self) -> None:
        """Selects the strongest level that works here. Raises: SandboxError."""
        await self.select_level()
        log.info("sandbox_started", level=self._level.value, workers=self._slots.qsize())

    async def select_level(self) -> None:
        """Tries levels by running a job at each, from the strongest on. Raises: SandboxError."""
        self._folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="astraflow-sandbox-"))
        self._folder.chmod(0o711)
        strongest = _LEVELS.index(Level(self._options.level))
        for level in _LEVELS[:strongest]:
            self.reasons[level] = "not tried: the option `level` excludes it"
        for level in _LEVELS[strongest:]:
            if level is Level.NONE and not self._options.allow_weak:
                break
            try:
                worker = await self._probed(level)
            except SandboxError as problem:
                self.reasons[level] = str(problem)
                continue
            self._level = level
            self._fill(worker)
            return
        causes = "; ".join(f"{level.value}: {reason}" for level, reason in self.reasons.items())
        raise SandboxError(
            f"cannot start the sandbox: this machine offers no isolation that is strong enough ({causes}); enable user "
            "namespaces or Landlock, use a remote sandbox, or set allow_weak = true where all code may be trusted",
            code="sandbox.too_weak",
        )

    async def close(self) -> None:
        """Kills all workers and sessions with what they run, and removes what they left. Idempotent."""
        while not self._slots.empty():
            self._slots.get_nowait()
        self._isolation = None
        try:
            await asyncio.gather(*(worker.close() for worker in self._workers), *self._closing)
        finally:
            self._workers.clear()
            folder, self._folder = self._folder, None
            if folder is not None:
                await remove_folder(folder)

    async def run(self, job: Job) -> JobResult:
        """Runs a job; one whose worker dies is repeated on another. Raises: InvalidInput; SandboxError."""
        _check_paths(job.files)
        message = {"kind": "job", "library": job.library, "limits": asdict(job.limits)}
        cause = ""
        for _ in range(_ATTEMPTS):
            worker = await self._acquire()
            try:
                answer = await worker.call(
                    message, job.source, wall_s=job.limits.wall_s, files=job.files, stdin=job.stdin
                )
            except WorkerLost as problem:
                cause = str(problem)
                log.warning("sandbox_worker_lost", cause=cause)
                self._release(worker, is_usable=False)
                continue
            except BaseException:
                self._release(worker, is_usable=False)  # it may still run the job
                raise
            self._release(worker, is_usable=worker.jobs < self._options.jobs_per_worker)
            return result_of(answer)
        raise SandboxError(
            f"cannot run a job: {_ATTEMPTS} workers were lost, the last because {cause}; check the memory of this "
            "machine",
            code="sandbox.worker_lost",
        )

    def session(self, limits: JobLimits, *, port: int | None = None) -> AbstractAsyncContextManager[Session]:
        """Opens a session in a fork server of its own, without a limit of processor time. Raises: SandboxError."""
        return self._session(limits, port)

    def worker_pids(self) -> list[int]:
        """Returns the processes of the workers, those of sessions included."""
        return [worker.process.pid for worker in self._workers]

    @asynccontextmanager
    async def _session(self, limits: JobLimits, port: int | None) -> AsyncIterator[Session]:
        if port is not None and self._level is Level.RESTRICTED:
            raise SandboxError(
                "cannot open a session that reaches one port: at the level 'restricted' a program that may connect to "
                "the port reaches it on every host; enable user namespaces and install bubblewrap (astraflow doctor "
                "shows what is missing)",
                code="sandbox.port_not_limitable",
            )
        worker = await self._started(port=port if self._level is Level.NAMESPACES else None)
        try:
            async with AsyncExitStack() as resources:
                if worker.listener is not None and port is not None:
                    await resources.enter_async_context(forwarded(worker.listener, port))
                yield LocalSession(worker, limits)
        finally:
            await asyncio.shield(self._discard(worker))

    async def _probed(self, level: Level) -> Worker:
        """Returns a worker that ran a job at this level. Raises: SandboxError."""
        assert self._folder is not None  # noqa: S101 (set by start)
        self._isolation = await asyncio.to_thread(
            Isolation, level, self._options, self._folder / level.value, user=self._user
        )
        worker = await self._started()
        limits = JobLimits()
        message = {"kind": "job", "library": "", "limits": asdict(limits)}
        try:
            result = result_of(await worker.call(message, _PROBE, wall_s=limits.wall_s, stdin=""))
        except (SandboxError, WorkerLost) as problem:
            self._discard(worker)
            raise SandboxError(f"a probe did not run: {problem}", code="sandbox.probe_failed") from problem
        if result.stdout != "42\n":
            self._discard(worker)
            raise SandboxError(
                f"a probe ended with {result.outcome.value}: {result.stderr[-300:]}", code="sandbox.probe_failed"
            )
        return worker

    def _fill(self, first: Worker) -> None:
        count = self._options.workers or len(os.sched_getaffinity(0))
        self._slots.put_nowait(first)
        for _ in range(count - 1):
            self._slots.put_nowait(None)

    async def _acquire(self) -> Worker:
        """Waits for a slot; starts a worker where the slot has none. Raises: SandboxError."""
        worker = await self._slots.get()
        if worker is not None and worker.process.code is None:
            return worker
        if worker is not None:
            self._discard(worker)
        try:
            return await self._started()
        except BaseException:
            self._slots.put_nowait(None)
            raise

    def _release(self, worker: Worker, *, is_usable: bool) -> None:
        self._slots.put_nowait(worker if is_usable else None)
        if not is_usable:
            self._discard(worker)

    async def _started(self, *, port: int | None = None) -> Worker:
        if self._isolation is None or self._folder is None:
            raise SandboxError("cannot run a job: the sandbox is closed; start it", code="sandbox.closed")
        start = await asyncio.to_thread(self._isolation.start, port=port)
        worker = await Worker.started(start, timeout_s=self._options.start_s)
        self._workers.add(worker)
        return worker

    def _discard(self, worker: Worker) -> asyncio.Task[None]:
        """Ends a worker; returns the task that does."""
        self._workers.discard(worker)
        closing = asyncio.create_task(worker.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return closing


class LocalSession:
    """Shell and interpreter in one fork server."""

    def __init__(self, worker: Worker, limits: JobLimits) -> None:
        self._worker = worker
        self._limits = limits

    async def shell(self, command: str, *, timeout_s: float = 30.0) -> JobResult:
        """Runs a command in the shell. Raises: SandboxError."""
        return await self._call("shell", command, timeout_s)

    async def python(self, source: str, *, timeout_s: float = 30.0) -> JobResult:
        """Runs statements in the interpreter. Raises: SandboxError."""
        return await self._call("python", source, timeout_s)

    async def execute(self, command: Command, *, timeout_s: float = 30.0, output_bytes: int | None = None) -> JobResult:
        """Runs a program until it exits. Raises: InvalidInput; SandboxError."""
        _check_paths(command.files)
        content = json.dumps({"arguments": command.arguments, "environment": dict(command.environment)})
        return await self._call(
            "command", content, timeout_s, files=command.files, stdin=command.stdin, output_bytes=output_bytes
        )

    async def stop(self) -> None:
        """Ends shell and interpreter, with what they started. Raises: SandboxError."""
        await self._call("stop", "", _STOP_S)

    async def _call(
        self,
        kind: str,
        text: str,
        timeout_s: float,
        *,
        files: Mapping[str, str] | None = None,
        stdin: str | None = None,
        output_bytes: int | None = None,
    ) -> JobResult:
        limits = replace(self._limits, wall_s=timeout_s, output_bytes=output_bytes or self._limits.output_bytes)
        message = {"kind": kind, "limits": asdict(limits)}
        try:
            return result_of(await self._worker.call(message, text, wall_s=timeout_s, files=files, stdin=stdin))
        except WorkerLost as problem:
            raise SandboxError(
                f"cannot continue the session: its process was lost: {problem}; open another session",
                code="sandbox.session_lost",
            ) from problem


async def probe() -> tuple[Level, dict[Level, str]]:
    """Returns the isolation of this machine, and why each stronger level is not available. Raises: SandboxError."""
    sandbox = LocalSandbox(LocalSandboxOptions(workers=1))
    try:
        await sandbox.select_level()
        return sandbox.level, sandbox.reasons
    finally:
        await sandbox.close()


def result_of(answer: Mapping[str, Any]) -> JobResult:
    """Returns the answer of a fork server as a result. Raises: SandboxError for a failure of the sandbox."""
    if "broken" in answer:
        raise SandboxError(
            f"cannot run a job: the sandbox failed: {answer['broken']}; check memory and processes of this machine",
            code="sandbox.job_not_started",
        )
    try:
        return JobResult(**{**answer, "outcome": Outcome(answer["outcome"])})
    except (KeyError, TypeError, ValueError) as problem:
        raise SandboxError(
            f"cannot read the answer of a worker: {problem!r}; report this defect", code="sandbox.invalid_answer"
        ) from problem


def _check_paths(files: Mapping[str, str]) -> None:
    for path in files:
        parts = PurePosixPath(path)
        if not path or parts.is_absolute() or ".." in parts.parts or "\0" in path:
            raise InvalidInput(
                f"cannot write file {path!r} of a job: it is not below the working directory; use a relative path",
                code="sandbox.invalid_path",
            )
