"""Program that runs a solution in the sandbox. Its text is the job's library, so it uses the standard library only.

The working directory holds `solution.py`, and `prompt.py` with the code that the problem gives; the job's source is
`main(KIND)`. The outcome is judged outside:

    stdin   the solution runs as a program; its output is what it prints
    call    reads function and arguments from standard input, prints the value that it returns, as JSON
    check   reads function, check and the problem's code from standard input, prints `passed` when the check passes, or
            `undefined NAME` when it calls what neither it nor the problem's code defines. The check runs in another
            process than the solution, of which it calls the function over a pipe with plain values, and nothing else:
            other functions are those of the problem. A solution can neither read the check nor change what it compares
            with
"""

import builtins
import ctypes
import json
import os
import sys
import types
from collections.abc import Callable
from typing import Any, BinaryIO, NoReturn

PRELUDE = """
from bisect import *
from collections import *
from copy import *
from datetime import *
from functools import *
from heapq import *
from itertools import *
from math import *
from operator import *
from random import *
from re import *
from statistics import *
from string import *
from typing import *
import bisect, collections, copy, datetime, functools, heapq, itertools, json, math, operator, os, random, re
import statistics, string, sys, typing
"""
"""Names that statements of programming contests take for granted."""
_PRELUDE_NAMES: dict[str, Any] = {}
exec(PRELUDE, _PRELUDE_NAMES)  # noqa: S102 (the text above)
_BUILTINS = _PRELUDE_NAMES | vars(builtins) | {"exit": sys.exit, "quit": sys.exit}
"""Builtins of a solution. Made once, because copying them touches most pages that processes share."""

_PR_SET_DUMPABLE = 4


def main(kind: str) -> None:
    """Runs the solution. kind: of the test."""
    sys.set_int_max_str_digits(0)
    source = _text("solution.py")
    if kind == "stdin":
        sys.setrecursionlimit(10**6)
        load(source, "__main__")
    elif kind == "call":
        _call(source, json.load(sys.stdin))
    else:
        _check(source)


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 (as fast as possible)
        return file.read()


def load(source: str, name: str, *, prompt: str = "") -> dict[str, Any]:
    """Runs a solution as a module, after the code of the problem; returns the names that they define."""
    sys.modules[name] = module = types.ModuleType(name)
    names = vars(module)
    names["__builtins__"] = _BUILTINS  # apart from the solution's own, which the tests call
    names["__file__"] = os.path.abspath("solution.py")  # noqa: PTH100 (as fast as possible)
    for file, code in (("prompt.py", prompt), ("solution.py", source)):
        if code:
            exec(compile(code, file, "exec"), names)  # noqa: S102
    return names


def function_of(names: dict[str, Any], name: str) -> Callable[..., Any]:
    """Returns a function, or the method of a class `Solution`. Raises: NameError."""
    function = names.get(name)
    if not callable(function) and "Solution" in names:
        function = getattr(names["Solution"](), name, None)
    if not callable(function):
        raise NameError(f"the solution defines no function {name!r}")
    return function  # type: ignore[no-any-return]  # of the solution


def encode(value: Any) -> Any:
    """Returns a plain value as JSON that keeps tuples, sets and keys. Raises: TypeError for other values."""
    if value is None or isinstance(value, bool | str):
        return value if value is None or isinstance(value, bool) else str(value)
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, tuple | set | frozenset):
        return {"set" if isinstance(value, set | frozenset) else "tuple": [encode(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if hasattr(value, "item"):  # a number of numpy
        return encode(value.item())
    raise TypeError(f"a value of type {type(value).__name__} cannot be compared")


def decode(content: Any) -> Any:
    """Returns the value that was encoded."""
    if isinstance(content, list):
        return [decode(item) for item in content]
    if not isinstance(content, dict):
        return content
    (kind, items), *_ = content.items()
    if kind == "dict":
        return {decode(key): decode(item) for key, item in items}
    if kind in {"tuple", "set"}:
        return (tuple if kind == "tuple" else set)(decode(item) for item in items)
    return bytes.fromhex(items) if kind == "bytes" else complex(*items)


def _call(source: str, task: dict[str, Any]) -> None:
    result = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    value = function_of(load(source, "solution"), task["function"])(*task["arguments"])
    os.write(result, json.dumps(_as_json(value)).encode() + b"\n")


def _as_json(value: Any) -> Any:
    """Returns a value as JSON has it: tuples as lists, keys as texts."""
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _as_json(item) for key, item in value.items()}
    return encode(value)


def _check(source: str) -> None:
    """Runs the check in this process, and the solution in a child that has neither its input nor its output."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # the child cannot open files of this process
    calls, answers = os.pipe(), os.pipe()
    if os.fork() == 0:
        _serve(source, calls, answers)
    task = json.load(sys.stdin)
    os.close(calls[0])
    os.close(answers[1])
    verdict = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the check prints is no verdict
    function = _proxy(task["function"], os.fdopen(calls[1], "wb"), os.fdopen(answers[0], "rb"))
    scope: dict[str, Any] = {"__name__": "check", "__builtins__": builtins}
    if task["prompt"]:
        scope |= load("", "problem", prompt=task["prompt"]) | scope
    scope[task["function"]] = function
    try:
        exec(compile(task["code"], "check.py", "exec"), scope)  # noqa: S102 (the purpose of the sandbox)
        scope["check"](function)
    except NameError as problem:
        if getattr(problem, "name", None) is None:  # an error of the solution
            raise
        os.write(verdict, f"undefined {problem.name}\n".encode())
    else:
        os.write(verdict, b"passed\n")


def _proxy(name: str, to_child: BinaryIO, from_child: BinaryIO) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        request = {"function": name, "arguments": encode(arguments), "named": encode(named)}
        to_child.write(json.dumps(request).encode() + b"\n")
        to_child.flush()
        answer = json.loads(from_child.readline() or b'{"error": ["RuntimeError", "the solution ended"]}')
        if "error" in answer:
            raise _error(*answer["error"])
        return decode(answer["value"])

    return call


def _error(kind: str, text: str) -> Exception:
    """Returns an error of the solution. One that ends a loop of the check, such as `map` over its cases, is another."""
    error = vars(builtins).get(kind)
    if not isinstance(error, type) or not issubclass(error, Exception):
        return RuntimeError(text)
    if issubclass(error, (StopIteration, StopAsyncIteration, UnicodeError)):  # the last: it takes other arguments
        return ValueError(text) if issubclass(error, UnicodeError) else RuntimeError(text)
    return error(text)


def _serve(source: str, calls: tuple[int, int], answers: tuple[int, int]) -> NoReturn:
    """Loads the solution and answers calls until the check ends. Never returns."""
    try:
        for descriptor in (calls[1], answers[0]):
            os.close(descriptor)
        for descriptor in (0, 1):
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
        requests, replies = os.fdopen(calls[0], "rb"), os.fdopen(answers[1], "wb")
        names = load(source, "solution", prompt=_text("prompt.py") if "prompt.py" in os.listdir() else "")  # noqa: PTH208
        for line in requests:
            replies.write(json.dumps(_answer(names, json.loads(line))).encode() + b"\n")
            replies.flush()
    except BaseException as problem:  # the check then finds no answer
        os.write(2, f"{type(problem).__name__}: {problem}\n".encode(errors="replace"))
    finally:
        os._exit(0)


def _answer(names: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    try:
        arguments, named = decode(request["arguments"]), decode(request["named"])
        return {"value": encode(function_of(names, request["function"])(*arguments, **named))}
    except Exception as problem:  # of any kind, by the solution
        return {"error": [type(problem).__name__, str(problem)]}
