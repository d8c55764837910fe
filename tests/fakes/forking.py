"""Python without the time of imports: a process that has imported the programs of AstraFlow forks for each start.

`ForkingPython.executable` takes the place of `sys.executable`: `-m MODULE` of a program starts a client without
imports, which passes its arguments, environment, folder and files, forwards signals, and ends as the program ends. The
program is killed when its client is. Anything else starts the real interpreter. The process id that others see is that
of the client: SIGSTOP does not stop the program.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]
PYTHON = sys.executable
"""Real interpreter, also while a test replaces `sys.executable`."""
FORKED = "--forked"
"""First argument of programs that fork whatever they are: `-m MODULE`, `-c PROGRAM` or a file follows."""

IMPORTS = (
    "alembic.command",
    "astraflow.cli.running.local_run",
    "astraflow.cli.main",
    "astraflow.cli.running.programs",
    "astraflow.cli.recipes.form",
    "astraflow.cli.services.roles",
    "astraflow.cli.services.commands",
    "astraflow.cli.services.control_commands",
    "astraflow.dataflow.service",
    "astraflow.raas.service",
    "astraflow.trainer.backends.fsdp",
    "astraflow.trainer.service",
    "astraflow.weights.service",
    "maintainer.fleet.service",
    "maintainer.mcp.service",
    "maintainer.agent.service",
    "rich.table",
    "torch.distributed.fsdp",
    "transformers.models.qwen3.modeling_qwen3",
    "web.service",
)
"""Modules that the programs import, some of them late."""

OF_EXTRAS = ("anthropic", "httpx2", "mcp", "mcp_types", "torch", "transformers")
"""Packages that the environment of `make test-lowest` lacks. What imports them is not imported in advance."""

CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
arguments = sys.argv[1:]
if arguments[:1] == [{forked!r}]:
    del arguments[0]
else:
    module = arguments[1] if arguments[:1] == ["-m"] and len(arguments) > 1 else ""
    is_program = module == "astraflow.cli" or module.partition(".")[0] in ("web", "maintainer")
    variables = {{name: text for name, text in os.environ.items() if name.startswith("PYTHON")}}
    if not is_program or variables != {variables!r}:
        os.execv({python!r}, [{python!r}, *arguments])
if "ASTRAFLOW_PARENT" in os.environ:
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it ends with its parent, as a rank does
connection = socket.socket(socket.AF_UNIX)
connection.connect({path!r})
umask = os.umask(0o077)
request = {{"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd(), "umask": umask}}
socket.send_fds(connection, [b"-"], [0, 1, 2])
connection.sendall(json.dumps(request).encode() + b"\\n")
answers = connection.makefile()
pid = int(answers.readline())
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(pid, number))
code = int(answers.readline() or -signal.SIGKILL)
if code < 0:
    if code != -signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""
"""Program of the client. No answer means that the process that forks has ended."""


class ForkingPython:
    """Starts the process that forks when `executable` is read; `close` ends it."""

    def __init__(self, directory: Path) -> None:
        self._client, self._socket = directory / "python", directory / "socket"
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def executable(self) -> str:
        """Path that takes the place of `sys.executable`."""
        if self._server is None:
            variables = {name: text for name, text in os.environ.items() if name.startswith("PYTHON")}
            known = {"python": PYTHON, "forked": FORKED, "path": str(self._socket), "variables": variables}
            self._client.write_text(CLIENT.format(**known))
            self._client.chmod(0o755)
            command = [PYTHON, "-m", "tests.fakes.forking", str(self._socket), str(self._client)]
            # gRPC reads these variables when it is imported; see `astraflow.cli.main`.
            environment = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "NONE"}
            self._server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=environment)
            assert self._server.stdout is not None
            assert self._server.stdout.readline() == b"ready\n"
        return str(self._client)

    def close(self) -> None:
        """Ends the process."""
        if self._server is not None:
            self._server.kill()
            self._server.communicate()


@dataclass(frozen=True, slots=True)
class ForkingProgram:
    """Program that forks from `python`: `-m MODULE`, or any arguments of Python without `module`."""

    python: ForkingPython
    module: str = ""

    @property
    def command(self) -> tuple[str, ...]:
        """Command line that takes the arguments of the program."""
        return (self.python.executable, FORKED, *(("-m", self.module) if self.module else ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """Program that runs, and the connection to its client."""

    pid: int
    descriptor: int
    """File descriptor of the process, which is readable after its end."""
    connection: socket.socket

    def close(self) -> None:
        os.close(self.descriptor)
        self.connection.close()


class _Server:
    """Forks a program for each client, kills it when the client ends, and tells the client how it ended."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._programs: dict[int, _Program] = {}

    def serve(self) -> NoReturn:
        """Serves until the process is killed. A program whose client was killed ends before the next one starts, which
        may need its port."""
        while True:
            events = [key for key, _ in self._selector.select()]
            for key in events:
                program = key.data
                if program is not None and program.pid in self._programs:
                    if key.fileobj is program.connection:  # its client has ended
                        os.killpg(program.pid, signal.SIGKILL)
                    self._end(program)
            if any(key.fileobj is self._listener for key in events):
                self._start()

    def _start(self) -> None:
        connection, _ = self._listener.accept()
        ready, is_ready = os.pipe()
        if (pid := os.fork()) == 0:
            self._close()
            _run(connection, is_ready)
        os.close(is_ready)
        os.read(ready, 1)  # end of file when the program has read its request
        os.close(ready)
        program = _Program(pid=pid, descriptor=os.pidfd_open(pid), connection=connection)
        self._programs[pid] = program
        self._selector.register(program.descriptor, selectors.EVENT_READ, program)
        self._selector.register(connection, selectors.EVENT_READ, program)
        _send(connection, f"{pid}\n")

    def _end(self, program: _Program) -> None:
        _, status = os.waitpid(program.pid, 0)
        _send(program.connection, f"{os.waitstatus_to_exitcode(status)}\n")
        self._selector.unregister(program.descriptor)
        self._selector.unregister(program.connection)
        self._programs.pop(program.pid).close()

    def _close(self) -> None:
        """Closes what belongs to the server, in a program."""
        self._selector.close()
        self._listener.close()
        for program in self._programs.values():
            program.close()


def _send(connection: socket.socket, text: str) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client has ended
        connection.sendall(text.encode())


def _run(connection: socket.socket, is_ready: int) -> NoReturn:
    """Runs the program of a request in this process and ends the process without cleanup, because the threads of
    libraries sometimes crash it."""
    code = 1
    try:
        os.setsid()
        with connection:
            _, files, _, _ = socket.recv_fds(connection, 1, 3)
            request = json.loads(connection.makefile().readline())
        os.close(is_ready)
        _take_over(request, files)
        code = _run_python(request["arguments"])
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError):  # their reader has ended
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _take_over(request: dict[str, Any], files: list[int]) -> None:
    """Gives this process the files, the folder and the environment of the client."""
    for standard, file in enumerate(files):
        os.dup2(file, standard)
        os.close(file)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(request["folder"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    # The kernel would end a rank with its parent, which here is the process that forks; its client ends it instead.
    os.environ.pop("ASTRAFLOW_PARENT", None)
    vars(sys.modules["astraflow.cli.running.commands"])["_STARTED_AT"] = time.monotonic()
    if "coverage" in sys.modules and (measured := sys.modules["coverage"].Coverage.current()) is not None:
        measured.switch_context(os.environ.get("PYTEST_CURRENT_TEST", ""))  # the test that started this program


def _run_python(arguments: list[str]) -> int:
    """Runs `-m MODULE`, `-c PROGRAM` or a file; returns the exit code."""
    option = arguments[0] if arguments[0] in ("-m", "-c") else ""
    target, *others = arguments[1:] if option else arguments
    sys.argv = [target, *others]
    sys.path[0] = str(Path.cwd() if option else Path(target).parent)
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")  # the module is imported already
    try:
        if option == "-m":
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        elif not option:
            runpy.run_path(target, run_name="__main__")
        else:
            exec(compile(target, "<program>", "exec"), {"__name__": "__main__"})  # noqa: S102 (a program of a test)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
            return 1
        return end.code or 0
    return 0


def main() -> NoReturn:
    """Imports the modules, then serves at the socket of the first argument. The second is the client's path."""
    path, sys.executable = sys.argv[1:]  # the programs that a program starts fork as well
    for name in IMPORTS:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as problem:
            if (problem.name or "").partition(".")[0] not in OF_EXTRAS:
                raise
    gc.collect()
    gc.freeze()  # so that collections do not copy memory that the programs share
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        _Server(listener).serve()


if __name__ == "__main__":
    main()
