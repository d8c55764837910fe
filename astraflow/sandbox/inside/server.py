"""Loop of the fork server: takes messages from the host, runs jobs, answers.

A message is its length in 4 bytes, then JSON: `kind` (job, command, shell or python), `limits`, for a job `library`,
then as many bytes as `content_bytes` says, then as many as `input_bytes` says, the standard input of the program. The
content is a line with the sizes of its texts, and these: source, command or statements, then path and text of each
file. The answer holds the fields of a result, then as many bytes as its two `output_bytes` say, or it holds `broken`
with the reason.

Source, files, input and outputs of a job go through files and through memory that forks do not get, because every job
is a copy of the fork server: a later job would find what an earlier one printed, and a solution the check that a reward
passes as input. A fork server of a session reads the texts for its interpreters, and serves nothing else.
"""

import gc
import importlib
import json
import os
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import Any

from . import kernel, programs
from .buffers import Buffer
from .children import Broken, Child, Children, HostLeft, Result, send
from .confinement import Confinement, Limits
from .reaper import mount_folder

_MAX_LIBRARIES = 8
_BUFFER_BYTES = 2**16


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
    except Exception as problem:  # of a module of the recipe, too: the node reports it
        send(host, {"broken": f"{type(problem).__name__}: {problem}"})
        return
    send(host, {"ready": True})
    buffer = Buffer(_BUFFER_BYTES)
    try:
        while (message := _received(host, buffer)) is not None:
            server.answer(message)
    except (HostLeft, ConnectionError):
        return
    finally:
        server.close()


class Server:
    """Answers messages, one at a time."""

    def __init__(self, children: Children, host: socket.socket) -> None:
        self._children = children
        self._host = host
        self._interpreters: dict[str, Child] = {}
        self._libraries: dict[str, dict[str, Any]] = {}

    def answer(self, message: dict[str, Any]) -> None:
        """Runs what a message asks for, and sends the result. Raises: HostLeft, OSError when the host left."""
        limits, kind = Limits(**message["limits"]), message["kind"]
        content, stdin = message["content"], message["input"]
        try:
            if kind == "job":
                result = self._run(message["library"], content, limits, stdin)
            elif kind == "command":
                result = self._execute(content, limits, stdin)
            elif kind == "stop":
                result = self._stop(content)
            else:
                result = self._interpret(kind, content, limits)
        except (Broken, OSError, MemoryError) as problem:
            send(self._host, {"broken": f"{type(problem).__name__}: {problem}"})
        else:
            send(self._host, result.fields, result.outputs)

    def close(self) -> None:
        for child in self._interpreters.values():
            self._children.kill(child)

    def _stop(self, content: int) -> Result:
        os.close(content)
        while self._interpreters:
            _, child = self._interpreters.popitem()
            self._children.kill(child)
            self._children.release(child)
        return Result({"outcome": "passed", "exit_status": 0, "stdout": "", "stderr": "", "wall_s": 0.0}, [])

    def _run(self, library: str, content: int, limits: Limits, stdin: int | None) -> Result:
        program = partial(programs.run_source, names=self._names_of(library))
        child = self._children.start(program, limits=limits, content=content, stdin=stdin)
        return self._children.wait(child, limits=limits)[0]

    def _names_of(self, library: str) -> dict[str, Any]:
        """Returns the names of a library, which forks share with its pages."""
        if library not in self._libraries:
            if len(self._libraries) == _MAX_LIBRARIES:
                del self._libraries[next(iter(self._libraries))]
            self._libraries[library] = programs.names_of(library)
            _freeze()
        return self._libraries[library]

    def _execute(self, content: int, limits: Limits, stdin: int | None) -> Result:
        child = self._children.start(programs.run_command, limits=limits, content=content, stdin=stdin, is_session=True)
        return self._children.wait(child, limits=limits)[0]

    def _interpret(self, kind: str, content: int, limits: Limits) -> Result:
        with open(content, encoding="utf-8", newline="") as file:
            text = file.read().partition("\n")[2]
        child = self._interpreters.pop(kind, None) or self._children.start(
            programs.serve_shell if kind == "shell" else programs.serve_python, limits=limits, is_session=True
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
    return Server(Children(confinement, host), host)


def _freeze() -> None:
    """Keeps the garbage collector of forks from writing to the pages that they share."""
    gc.collect()
    gc.freeze()


def _received(host: socket.socket, buffer: Buffer) -> dict[str, Any] | None:
    """Returns a message, with the descriptors of its `content` and of the program's `input`, which is None without;
    None when the host left. Raises: ConnectionError when it left within a message."""
    header = _bytes(host, 4)
    if header is None:
        return None
    fields = _bytes(host, int.from_bytes(header, "big"))
    if fields is None:
        return None
    message: dict[str, Any] = json.loads(fields)
    size = message["input_bytes"]
    message["content"] = _file(host, message["content_bytes"], buffer)
    message["input"] = None if size is None else _file(host, size, buffer)
    return message


def _file(host: socket.socket, size: int, buffer: Buffer) -> int:
    """Returns the descriptor of a file with the next bytes of the connection.

    Raises: ConnectionError when the host left; OSError.
    """
    descriptor = os.memfd_create("received")
    while size:
        count = host.recv_into(buffer.view, min(size, len(buffer.view)))
        if not count:
            raise ConnectionError("the host left")
        size -= count
        content = buffer.view[:count]
        while content:
            content = content[os.write(descriptor, content) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _bytes(host: socket.socket, count: int) -> bytes | None:
    content = bytearray()
    while len(content) < count:
        chunk = host.recv(min(count - len(content), 2**20))
        if not chunk:
            return None
        content += chunk
    return bytes(content)
