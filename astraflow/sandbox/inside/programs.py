"""Programs in a job's process: a Python source, or an interpreter of a session. None of them returns."""

import ast
import atexit
import builtins
import json
import linecache
import os
import shlex
import socket
import sys
import threading
import traceback
import types
from collections.abc import Mapping
from typing import Any, NoReturn

MEMORY_STATUS = 247
"""Exit status of a program without memory. A program that ends with it by itself is reported as out of memory."""

_SHELL = "/bin/bash"
CONTROL = 9
"""Descriptor over which a session's interpreter takes commands and reports their exit status, as a line."""


def names_of(library: str) -> dict[str, Any]:
    """Runs a library, which is trusted, in this process; returns the names that it defines."""
    names = {"__name__": "library", "__builtins__": builtins}
    exec(compile(library, "library.py", "exec"), names)  # noqa: S102 (our own text)
    return names


def run_source(source: str, *, names: Mapping[str, Any]) -> NoReturn:
    """Runs a program as `__main__`, then ends the process. names: of its library."""
    module = _main_module()
    vars(module).update({name: value for name, value in names.items() if not name.startswith("__")})
    sys.argv = ["main.py"]
    status = _executed(source, "main.py", "exec", vars(module))
    end(status)


def end(status: int) -> NoReturn:
    """Ends the process like the interpreter does: after threads, exit handlers and pending output."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter calls at its end
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except MemoryError:
        status = MEMORY_STATUS
    except BaseException:  # an exit handler of the program may raise anything
        status = status or 1
    finally:
        os._exit(status & 0xFF)


def serve_python(_: str) -> NoReturn:
    """Runs the statements that arrive, in one namespace; prints the value of a last expression."""
    names = vars(_main_module())
    control = socket.socket(fileno=CONTROL)
    commands = control.makefile("rb")
    count = 0
    while header := commands.readline():
        source = commands.read(int(header)).decode()
        count += 1
        status = _interactive(source, f"input-{count}", names)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):  # the program closed it
                status = status or 1
        control.sendall(b"%d\n" % (status & 0xFF))
    os._exit(0)


def serve_shell(_: str) -> NoReturn:
    """Replaces the process by a shell that reads its commands from `CONTROL`."""
    os.dup2(CONTROL, 0)
    os.set_inheritable(CONTROL, True)
    os.execv(_SHELL, [_SHELL, "--noprofile", "--norc"])  # noqa: S606 (a shell is what sessions offer)


def run_command(command: str) -> NoReturn:
    """Replaces the process by a program, as a shell would find it. command: `arguments` and `environment`, as JSON."""
    content = json.loads(command)
    arguments: list[str] = content["arguments"]
    os.environ.update(content["environment"])
    try:
        os.execvp(arguments[0], arguments)  # noqa: S606 (no shell)
    except OSError as problem:
        os.write(2, f"cannot start {arguments[0]!r}: {problem.strerror}\n".encode(errors="replace"))
        os._exit(127 if isinstance(problem, FileNotFoundError) else 126)


def shell_command(command: str) -> bytes:
    """Returns what the shell reads to run a command and report its exit status."""
    return f"eval {shlex.quote(command)} </dev/null\nprintf '%s\\n' $? >&{CONTROL}\n".encode()


def python_command(source: str) -> bytes:
    """Returns what `serve_python` reads to run statements."""
    content = source.encode(errors="replace")
    return b"%d\n%s" % (len(content), content)


def _main_module() -> types.ModuleType:
    module = types.ModuleType("__main__")
    vars(module)["__builtins__"] = builtins
    sys.modules["__main__"] = module
    sys.path.insert(0, "")
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # without the module `site` they are missing
    return module


def _interactive(source: str, name: str, names: dict[str, Any]) -> int:
    try:
        tree = ast.parse(source, name)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        traceback.print_exc(limit=0)
        return 1
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    status = _executed(tree, name, "exec", names, source)
    if status or last is None:
        return status
    return _executed(ast.Interactive([last]), name, "single", names, source)


def _executed(program: Any, name: str, mode: str, names: dict[str, Any], source: str = "") -> int:
    """Runs a program; returns the exit status that an interpreter would have."""
    text = source or (program if isinstance(program, str) else "")
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)  # for tracebacks
    try:
        exec(compile(program, name, mode), names)  # noqa: S102 (the purpose of the sandbox)
    except SystemExit as problem:
        return _exit_status(problem.code)
    except MemoryError:
        _print_traceback()
        return MEMORY_STATUS
    except BaseException:  # as the interpreter itself
        _print_traceback()
        return 1
    return 0


def _print_traceback() -> None:
    kind, value, trace = sys.exc_info()
    try:
        traceback.print_exception(kind, value, trace.tb_next if trace else None)
    except BaseException:  # the exception's own methods may raise
        os.write(2, b"the traceback cannot be printed\n")


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code)
    sys.stderr.write(f"{code}\n")
    return 1
