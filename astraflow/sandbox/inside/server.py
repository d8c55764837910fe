"""Loop of the fork server: takes messages from the host, runs jobs, answers.

A message is its length in 4 bytes, then JSON: `{"job": ...}`, `{"shell": ...}`, `{"python": ...}` or
`{"command": ...}`, then as many bytes as its `input_bytes` says, the standard input of the program. The answer holds
the fields of a result, or `broken` with the reason.

The input goes into a file, and never into memory of the fork server, of which every job is a copy: a check that a
reward passes as input would be in reach of the solution, which is a fork of the process that reads the check.
"""

import gc
import importlib
import json
import mmap
import os
import shutil
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import Any

from . import kernel, programs
from .children import Broken, Child, Children, HostLeft, send
from .confinement import Confinement, Limits
from .guardian import mount_folder

_MAX_LIBRARIES = 8


def main() -> None:
    """Serves until the host leaves. Arguments: settings as JSON, descriptor of the connection, and with a port that of
    the connection which takes the listening socket."""
    settings = json.loads(sys.argv[1])
    host = socket.socket(fileno=int(sys.argv[2]))
    host.set_inheritable(False)
    try:
        if settings["port"] is not None:
            _listen(settings["port"], int(sys.argv[3]))
        server = _prepared(settings, host)
    except Exception as problem:
        send(host, {"broken": f"{type(problem).__name__}: {problem}"})
        return
    send(host, {"ready": True})
    try:
        while (message := _received(host)) is not None:
            send(host, server.answer(message))
    except (HostLeft, ConnectionError):
        return
    finally:
        server.close()


class Server:
    """Answers messages, one at a time."""

    def __init__(self, children: Children, confinement: Confinement) -> None:
        self._children = children
        self._confinement = confinement
        self._interpreters: dict[str, Child] = {}
        self._libraries: dict[str, dict[str, Any]] = {}

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Runs what a message asks for. Raises: HostLeft."""
        limits, stdin = Limits(**message["limits"]), message["input"]
        try:
            if "job" in message:
                return self._run(message["job"], limits, stdin)
            if "command" in message:
                return self._execute(message["command"], limits, stdin)
            if "stop" in message:
                return self._stop()
            kind = "shell" if "shell" in message else "python"
            return self._interpret(kind, message[kind], limits)
        except (Broken, OSError, MemoryError) as problem:
            return {"broken": f"{type(problem).__name__}: {problem}"}

    def close(self) -> None:
        """Ends the interpreters."""
        for child in self._interpreters.values():
            self._children.kill(child)

    def _stop(self) -> dict[str, Any]:
        while self._interpreters:
            _, child = self._interpreters.popitem()
            self._children.kill(child)
            self._children.release(child)
        return {"outcome": "passed", "exit_status": 0, "stdout": "", "stderr": "", "wall_s": 0.0}

    def _run(self, job: dict[str, Any], limits: Limits, stdin: int) -> dict[str, Any]:
        program = partial(programs.run_source, job["source"], self._names_of(job["library"]))
        child = self._children.start(program, limits=limits, stdin=stdin, files=job["files"])
        try:
            return self._children.wait(child, limits=limits)[0]
        finally:
            if not self._confinement.has_namespaces:
                _empty(self._confinement.folder)

    def _names_of(self, library: str) -> dict[str, Any]:
        """Returns the names of a library, which forks share with its pages."""
        if library not in self._libraries:
            if len(self._libraries) == _MAX_LIBRARIES:
                del self._libraries[next(iter(self._libraries))]
            self._libraries[library] = programs.names_of(library)
            _freeze()
        return self._libraries[library]

    def _execute(self, command: dict[str, Any], limits: Limits, stdin: int) -> dict[str, Any]:
        child = self._children.start(
            partial(programs.run_command, command["arguments"], command["environment"]),
            limits=limits,
            stdin=stdin,
            files=command["files"],
            is_session=True,
        )
        return self._children.wait(child, limits=limits)[0]

    def _interpret(self, kind: str, text: str, limits: Limits) -> dict[str, Any]:
        child = self._interpreters.pop(kind, None) or self._children.start(
            programs.serve_shell if kind == "shell" else programs.serve_python,
            limits=limits,
            stdin=None,
            files={},
            is_session=True,
        )
        assert child.control is not None  # noqa: S101 (every interpreter has one)
        command = programs.shell_command(text) if kind == "shell" else programs.python_command(text)
        with suppress(OSError):  # it ended since the last command, and the report says how
            child.control.sendall(command)
        result, has_ended = self._children.wait(child, limits=limits, for_reply=True)
        if not has_ended:
            self._interpreters[kind] = child
        return result


def _listen(port: int, descriptor: int) -> None:
    """Opens a port in the network namespace and hands its listening socket to the host, which alone accepts its
    connections: no program here has another way out."""
    with socket.socket(fileno=descriptor) as channel, socket.create_server(("127.0.0.1", port), backlog=64) as listener:
        socket.send_fds(channel, [b"listener"], [listener.fileno()])


def _prepared(settings: dict[str, Any], host: socket.socket) -> Server:
    confinement = Confinement(**settings["confinement"])
    confinement.check()
    for name in settings["modules"]:
        importlib.import_module(name)
    if confinement.has_namespaces:
        mount_folder(confinement)
    kernel.adopt_orphans()
    _freeze()
    return Server(Children(confinement, host), confinement)


def _freeze() -> None:
    """Keeps the garbage collector of forks from writing to the pages that they share."""
    gc.collect()
    gc.freeze()


def _received(host: socket.socket) -> dict[str, Any] | None:
    """Returns a message, with the descriptor of the program's input as `input`; None when the host left."""
    header = _bytes(host, 4)
    if header is None:
        return None
    content = _bytes(host, int.from_bytes(header, "big"))
    if content is None:
        return None
    message: dict[str, Any] = json.loads(content)
    size = message.pop("input_bytes")
    message["input"] = None if size is None else _input_file(host, size)
    return message


def _input_file(host: socket.socket, size: int) -> int:
    """Returns the descriptor of a file with the next bytes of the connection. They go through a mapping of the file,
    which is gone before the next fork: no object and no freed memory of this process holds a part of them.

    Raises: ConnectionError when the host left.
    """
    descriptor = os.memfd_create("stdin")
    if size:
        os.truncate(descriptor, size)
        with mmap.mmap(descriptor, size) as mapping, memoryview(mapping) as view:
            filled = 0
            while filled < size:
                count = host.recv_into(view[filled:])
                if not count:
                    raise ConnectionError("the host left")
                filled += count
    return descriptor


def _bytes(host: socket.socket, count: int) -> bytes | None:
    content = bytearray()
    while len(content) < count:
        chunk = host.recv(min(count - len(content), 2**20))
        if not chunk:
            return None
        content += chunk
    return bytes(content)


def _empty(folder: str) -> None:
    """Removes everything that a job left, also where it took away permissions."""
    os.chmod(folder, 0o700)
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            os.chmod(entry.path, 0o700)
            for root, names, _ in os.walk(entry.path):
                for name in names:
                    if not os.path.islink(os.path.join(root, name)):
                        os.chmod(os.path.join(root, name), 0o700)
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
