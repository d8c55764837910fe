"""One child process: its environment, a session of its own, its output in a log or returned, the end of its group."""

import asyncio
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

LOG_TAIL_LINES = 20
MAX_LINE_BYTES = 2**20
"""Longest line of a logged output; a longer one is dropped."""
_LAST_LINES_S = 1.0
"""Longest wait for the last lines of an ended process, whose own children may hold its output open. Seconds."""
_KEPT = (
    "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SSL_CERT_DIR", "SSL_CERT_FILE",
    "TMPDIR", "TZ", "USER",
)  # fmt: skip
"""Variables that programs need on any host, and that hold no secret."""
PYTHON_VARIABLES = (
    "ASTRAFLOW_HOME", "ASTRAFLOW_PLUGINS", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "PYTHONPATH", "PYTHONUTF8",
    "PYTHONWARNINGS", "VIRTUAL_ENV",
)  # fmt: skip
"""Variables of programs that import AstraFlow or the user's modules in this interpreter."""
_RUN_PREFIXES = (
    "AWS_", "AZURE_", "CUDA_", "GOOGLE_", "HF_", "MLFLOW_", "NCCL_", "NVIDIA_", "PYTORCH_", "TORCH_", "TRITON_",
    "WANDB_", "XDG_",
)  # fmt: skip
_RUN_VARIABLES = (
    *PYTHON_VARIABLES, "ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "OMP_NUM_THREADS", "all_proxy",
    "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip


def child_environment(names: Iterable[str] = (), /, **added: str) -> dict[str, str]:
    """Returns the environment of a child process that runs code or texts of others, to which no token or key of this
    process may come: what programs need on any host, the named variables of this process as far as they are set, and
    the added ones.

    >>> sorted(child_environment(OMP_NUM_THREADS="1").keys() - set(_KEPT))
    ['OMP_NUM_THREADS']
    """
    return {name: os.environ[name] for name in (*_KEPT, *names) if name in os.environ} | added


def run_environment() -> dict[str, str]:
    """Returns the environment of another run of the same user: devices, caches, proxies, and the access to stores, hubs
    and trackers. No token of this run, and no key of a model or judge."""
    return child_environment((*_RUN_VARIABLES, *(name for name in os.environ if name.startswith(_RUN_PREFIXES))))


def start_independent(argv: Sequence[str], *, environment: Mapping[str, str], log_file: Path) -> int:
    """Starts a program that outlives this process, in a session of its own, and returns its process id. log_file: gets
    its output, at the end. Raises: OSError."""
    with log_file.open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 (a list of arguments, no shell)
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(environment),
            start_new_session=True,
        )
    threading.Thread(target=process.wait, daemon=True).start()  # no zombie, and no warning about a running process
    return process.pid


class _Protocol(asyncio.subprocess.SubprocessStreamProtocol):
    """Notices the exit of a process also while its own children hold its pipes open, unlike asyncio's `wait`."""

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit, loop)
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


class ChildProcess:
    """Child process in a session of its own: Ctrl-C in the terminal does not reach it, and its group ends with it."""

    def __init__(self, transport: asyncio.SubprocessTransport, protocol: _Protocol) -> None:
        self._transport = transport
        self._exited = protocol.exited
        self._process = asyncio.subprocess.Process(transport, protocol, asyncio.get_running_loop())

    @classmethod
    async def spawn(
        cls,
        *argv: str,
        environment: Mapping[str, str],
        stdin: int = asyncio.subprocess.DEVNULL,
        stdout: int = asyncio.subprocess.DEVNULL,
        stderr: int | None = None,
        pass_fds: Sequence[int] = (),
        cwd: str | None = None,
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> Self:
        """Starts a program. environment: all its variables. stderr: None: that of this process. Raises: OSError."""
        loop = asyncio.get_running_loop()
        spawning = asyncio.ensure_future(loop.subprocess_exec(
            lambda: _Protocol(max_line_bytes, loop), *argv, env=dict(environment), stdin=stdin, stdout=stdout,
            stderr=stderr, pass_fds=pass_fds, cwd=cwd, start_new_session=True,
        ))  # fmt: skip
        try:
            return cls(*await asyncio.shield(spawning))
        except asyncio.CancelledError:  # asyncio would leave pipes, and processes of the group
            await asyncio.wait({spawning})
            if spawning.exception() is None:
                await cls(*spawning.result()).stop()
            raise

    @property
    def pid(self) -> int:
        """Process id, which is also that of its group."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._process.returncode

    @property
    def errors(self) -> asyncio.StreamReader | None:
        """Standard error, when it is a pipe."""
        return self._process.stderr

    async def wait(self) -> int:
        """Waits for the exit; returns the exit code, negative for a signal."""
        await self._exited.wait()
        return int(self._transport.get_returncode() or 0)

    async def has_ended_within(self, limit_s: float) -> bool:
        """Waits for the exit at most `limit_s` seconds; returns whether it has exited."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._exited.wait(), limit_s)
        return self.code is not None

    def kill(self) -> None:
        """Kills the processes of its group, also those that it has left. Idempotent."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def ask_to_end(self, grace_s: float) -> None:
        """Sends SIGTERM, also to a suspended process; waits for its exit at most `grace_s` seconds."""
        if self.code is None:
            with suppress(ProcessLookupError):  # it has just ended
                for number in (signal.SIGTERM, signal.SIGCONT):
                    os.kill(self.pid, number)  # `send_signal` could reap it, which loses its exit code
            await self.has_ended_within(grace_s)

    async def stop(self, grace_s: float = 0.0) -> None:
        """Asks it to end, and kills its group after `grace_s` seconds. Returns after its exit. Idempotent."""
        try:
            await self.ask_to_end(grace_s)
        finally:
            self.kill()
            await self._exited.wait()
            self._transport.close()


class LoggedProcess(ChildProcess):
    """Child process whose output is copied to a log, line by line. Its exit is noticed, and it can be stopped, while
    its own children hold the output open."""

    def __init__(self, transport: asyncio.SubprocessTransport, protocol: _Protocol) -> None:
        super().__init__(transport, protocol)
        self._tail: deque[str] = deque(maxlen=LOG_TAIL_LINES)
        self._copying: asyncio.Task[None] | None = None

    @classmethod
    async def spawn_logged(
        cls,
        *argv: str,
        environment: Mapping[str, str],
        log_file: Path,
        stdin: int = asyncio.subprocess.DEVNULL,
        on_line: Callable[[str], None] = lambda line: None,
        secret: str = "",
        has_own_errors: bool = False,
    ) -> Self:
        """Starts a program. log_file: readable by this user only. on_line: receives each line. secret: text that is
        hidden in the lines. has_own_errors: standard error goes to the log by itself, also when this process has ended.

        Raises: OSError.
        """
        log_file.parent.mkdir(parents=True, exist_ok=True)
        log = os.fdopen(os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab", buffering=0)
        stderr = log.fileno() if has_own_errors else asyncio.subprocess.STDOUT
        try:
            child = await cls.spawn(
                *argv, environment=environment, stdin=stdin, stdout=asyncio.subprocess.PIPE, stderr=stderr
            )
        except BaseException:
            log.close()
            raise
        child._copying = asyncio.create_task(child._copy(log, on_line, secret.encode()))
        child._copying.add_done_callback(lambda _: log.close())  # also when it is cancelled before it begins
        return child

    @property
    def log_tail(self) -> tuple[str, ...]:
        """Last lines of the output."""
        return tuple(self._tail)

    async def wait(self) -> int:
        """Waits for the exit and the remaining output; returns the exit code."""
        code = await super().wait()
        if self._copying is not None:
            await asyncio.wait({self._copying}, timeout=_LAST_LINES_S)
        return code

    async def stop(self, grace_s: float = 0.0) -> None:
        """As that of `ChildProcess`; then nothing is copied any more."""
        await super().stop(grace_s)
        if self._copying is not None:
            self._copying.cancel()
            await asyncio.wait({self._copying})

    async def _copy(self, log: BinaryIO, on_line: Callable[[str], None], secret: bytes) -> None:
        assert self._process.stdout is not None  # noqa: S101 (a pipe)
        while line := await _next_line(self._process.stdout):
            line = line.replace(secret, b"(hidden)") if secret else line
            text = line.decode(errors="replace").rstrip()
            self._tail.append(text)
            with suppress(OSError):  # a full disk loses the line, but must not block the process
                log.write(line)
            on_line(text)


async def _next_line(lines: asyncio.StreamReader) -> bytes:
    """Returns the next line that is not above the limit; empty at the end."""
    is_too_long = False
    while True:
        try:
            line = await lines.readuntil()
        except asyncio.LimitOverrunError as problem:
            await lines.readexactly(problem.consumed)
            is_too_long = True
        except asyncio.IncompleteReadError as end:
            return b"" if is_too_long else end.partial
        else:
            if not is_too_long:
                return line
            is_too_long = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Exit code and outputs of a command."""

    code: int
    output: str
    errors: str


async def run_command(*argv: str, environment: Mapping[str, str], limit_s: float) -> CommandResult:
    """Runs a command without input. It is killed when it takes longer or the caller is cancelled, and what it started
    and left in its group also when it ends.

    Raises: OSError when it cannot be started; TimeoutError.
    """
    pipe = asyncio.subprocess.PIPE
    child = await ChildProcess.spawn(*argv, environment=environment, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(limit_s):
            outputs = await child._process.communicate()
            code = await child.wait()
    finally:
        await child.stop()
    output, errors = (text.decode(errors="replace") for text in outputs)
    return CommandResult(code=code, output=output, errors=errors)
