"""Python programs without the time of their imports: a process that has imported a program forks for each start.

`ForkingProgram.command` takes the place of `python -m MODULE`. It starts a client without imports, which passes its
arguments, environment, folder and files, forwards signals, and ends as the program ends. The program is killed when its
client is.
"""

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[2]

CLIENT = """
import json, os, signal, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
request = {"arguments": sys.argv[2:], "environment": dict(os.environ), "folder": os.getcwd()}
socket.send_fds(connection, [b"-"], [0, 1, 2])
connection.sendall(json.dumps(request).encode() + b"\\n")
answers = connection.makefile()
pid = int(answers.readline())
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(pid, number))
code = answers.read()
if not code:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(code))
"""
"""Program of the client. A program that ends without an exit code was killed."""


class ForkingProgram:
    """Starts the process that forks when `command` is read; `close` ends it."""

    def __init__(self, directory: Path, module: str, *imports: str) -> None:
        """module: has a function `main` that takes no argument and may return an exit code. imports: modules that it
        imports late.
        """
        self._directory = directory
        self._modules = (module, *imports)
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def command(self) -> tuple[str, ...]:
        """Command line that takes the arguments of the program."""
        client, path = self._directory / "client.py", self._directory / "socket"
        if self._server is None:
            client.write_text(CLIENT)
            server = [sys.executable, "-m", "tests.fakes.forking", str(path), *self._modules]
            # gRPC reads these variables when it is imported; see `astraflow.cli.main`.
            environment = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "NONE"}
            self._server = subprocess.Popen(server, cwd=ROOT, stdout=subprocess.PIPE, env=environment)
            assert self._server.stdout is not None
            assert self._server.stdout.readline() == b"ready\n"
        return (sys.executable, "-I", "-S", str(client), str(path))

    def close(self) -> None:
        """Ends the process."""
        if self._server is not None:
            self._server.kill()
            self._server.communicate()


def _serve(path: str, module: str, *imports: str) -> None:
    main = importlib.import_module(module).main
    for name in imports:
        importlib.import_module(name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    _run(connection, main)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _run(connection: socket.socket, main: Callable[[], int | None]) -> NoReturn:
    """Runs the program in this process, sends its exit code to the client, and ends the process."""
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    request = json.loads(connection.makefile().readline())
    connection.sendall(f"{os.getpid()}\n".encode())
    threading.Thread(target=_follow, args=(connection,), daemon=True).start()
    for standard, file in enumerate(files):
        os.dup2(file, standard)
    for file in files:
        os.close(file)
    sys.stdout, sys.stderr = (os.fdopen(file, "w", closefd=False) for file in (1, 2))
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [sys.argv[2], *request["arguments"]]
    code = 0
    try:
        code = main() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    connection.sendall(str(code).encode())
    os._exit(code)


def _follow(connection: socket.socket) -> None:
    """Kills this process when the client ends."""
    connection.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
