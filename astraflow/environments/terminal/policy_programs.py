"""Recognises programs of the policy that the tests of a terminal task start.

Sent as source with the supervisor: standard library of Python 3.10, and nothing else.
"""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

_SHELL = re.compile(r"(ba|da|z|k|a|mk|fi)?sh|busybox|python|pypy")
"""Interpreters with the option `-c`."""
_INTERPRETER = re.compile(
    r"perl|ruby|node|nodejs|deno|bun|php|lua|luajit|tclsh|expect|Rscript|R|julia|guile|racket|sbcl|runghc|ocaml|swipl|"
    r"octave"
)
_FILTER = re.compile(r"[gmn]?awk|sed|jq")
"""Interpreters of a script that `-f` names, else of an argument."""
_BUILDER = re.compile(
    r"g?make|ninja|cmake|ctest|cargo|go|npm|npx|yarn|pnpm|gradle|mvn|ant|rake|tox|just|java|git|docker|nginx|bundle"
)
"""Programs that run what a file of their working directory, or of an argument, says."""
_INLINE_OF_SHELL = re.compile(r"-[A-Za-z]*c")
_INLINE = re.compile(r"-[A-Za-z]*[eEr]|--eval|--print|-p|-pe")
_FILE_OPTIONS = ("-f", "--file", "-E", "--exec")
_VERSION = re.compile(r"[\d.-]+$")


@dataclass(frozen=True)
class ProgramStart:
    """Execution of a program."""

    program: str
    """Path of the executed file."""
    arguments: Sequence[str]
    folder: str
    """Working directory."""
    stdin: str = ""
    """Path of the file from which standard input is read; empty for a pipe or device."""
    called: str = ""
    """Path by which it was executed: of a script, where the first line of one named the program."""


def is_of_policy(trees: Sequence[str], start: ProgramStart) -> bool:
    """Returns whether a process runs code of the policy's folders `trees`: a program or a script in them, a build tool
    whose instructions are in them, or a Python for which they hide a module of its library.

    >>> is_of_policy(["/etc"], ProgramStart("/bin/bash", ["bash", "-o", "pipefail", "passwd"], "/etc"))
    True
    >>> is_of_policy(["/etc"], ProgramStart("/bin/python3.11", ["python3", "/usr/bin/env", "passwd"], "/etc"))
    False
    """
    first, *arguments = start.arguments or [""]
    paths = (start.program, start.called, first if "/" in first else "")
    if any(_is_in(trees, path, start.folder) for path in paths):
        return True
    name, words = _name(start.program), [word for word in arguments if word]
    if _BUILDER.fullmatch(name) or any(_BUILDER.fullmatch(_name(word)) for word in words[:1]):
        return any(
            _is_in(trees, path, start.folder) for word in (".", *words) for path in (word, word.partition("=")[2])
        )
    if _FILTER.fullmatch(name):
        return any(_is_in(trees, word, start.folder) for option, word in pairwise(words) if option in _FILE_OPTIONS)
    if name in ("python", "pypy") and _hides_library(trees, words, start.folder):
        return True
    if not _SHELL.fullmatch(name) and not _INTERPRETER.fullmatch(name):
        return False
    return _runs_script_in(trees, start, words, _INLINE_OF_SHELL if _SHELL.fullmatch(name) else _INLINE)


def named_files(folders: Sequence[str], start: ProgramStart) -> list[str]:
    """Returns the paths in folders that the arguments of a program name, also as the value of an option: its inputs.
    A link elsewhere, which the policy may have made, names none, nor does the first line of a script.

    >>> named_files(["/etc"], ProgramStart("/bin/cat", ["cat", "--file=passwd", "/etc", "/etc/none"], "/etc"))
    ['/etc/passwd']
    """
    own = max((at for at, word in enumerate(start.arguments) if word == start.called), default=0)
    words = [path for word in start.arguments[own + 1 :] for path in (word, word.partition("=")[2]) if path]
    paths = [os.path.normpath(os.path.join(start.folder, word)) for word in words]
    return [path for path in paths if any(path.startswith(f"{folder}/") for folder in folders) and os.path.exists(path)]


def _runs_script_in(trees: Sequence[str], start: ProgramStart, words: Sequence[str], inline: re.Pattern[str]) -> bool:
    """Returns whether the script of an interpreter is in the folders: its first argument that exists."""
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        if word == "-m":
            module = following.partition(".")[0]
            return any(_is_in(trees, path, start.folder) for path in (module, f"{module}.py") if module)
        if inline.fullmatch(word):
            return False
        if os.path.lexists(os.path.join(start.folder, word)):
            return _is_in(trees, word, start.folder)
    return bool(start.stdin) and _is_in(trees, start.stdin, start.folder)


def _hides_library(trees: Sequence[str], words: Sequence[str], folder: str) -> bool:
    """Returns whether Python would import modules of its library from a working directory of the policy."""
    script = next((word for word in words if not word.startswith("-") or word in ("-c", "-m", "-")), "-")
    if not script.startswith("-") or not _is_in(trees, ".", folder):
        return False
    entries = os.listdir(folder)
    modules = {entry.partition(".")[0] for entry in entries if entry.endswith((".py", ".pyc", ".so"))}
    modules |= {entry for entry in entries if os.path.lexists(os.path.join(folder, entry, "__init__.py"))}
    return bool(modules & set(sys.stdlib_module_names))


def _name(program: str) -> str:
    return _VERSION.sub("", os.path.basename(program)).removesuffix(".js")


def _is_in(trees: Sequence[str], path: str, folder: str) -> bool:
    """Returns whether a path exists in the folders, as it is written or with its links followed."""
    named = os.path.normpath(os.path.join(folder, path))
    if not path or not os.path.lexists(named):
        return False
    return any(f"{spelling}/".startswith(f"{tree}/") for tree in trees for spelling in (named, os.path.realpath(named)))
