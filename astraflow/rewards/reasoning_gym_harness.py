"""Program that runs verifiers of reasoning-gym in the sandbox. Its text is the job's library, so it imports that
package and the standard library only.

Some verifiers search, and some evaluate texts as Python: of the answer, and of the fields of a prompt, which another
data set may have. The sandbox contains that. So that no answer forges its own score, these verifiers read literals, or
plain expressions for sympy's parser, which evaluates its text as well; another text is no right answer.
"""

import ast
import json
import os
import re
import sys
from functools import lru_cache
from importlib import import_module
from typing import Any

EVALUATING_MODULES = (
    "reasoning_gym.algorithmic.binary_matrix",
    "reasoning_gym.algorithmic.number_sorting",
    "reasoning_gym.algorithmic.spiral_matrix",
    "reasoning_gym.algorithmic.string_insertion",
    "reasoning_gym.games.n_queens",
)
"""Modules whose verifiers call `eval`."""

PARSING_MODULES = ("reasoning_gym.games.countdown", "reasoning_gym.games.puzzle24", "sympy")
"""Modules whose function `parse_expr` verifiers call; those of algebra call sympy's."""

GRID_GENERATORS = frozenset({"arc_agi", "rearc"})
"""Generators whose verifiers compare grids as tuples, which JSON makes lists."""

# fmt: off
_FUNCTIONS = frozenset((
    "Abs", "C", "Ci", "E", "Integral", "Si", "acos", "acosh", "acot", "acsc", "asec", "asin", "asinh",
    "atan", "atanh", "cos", "cosh", "cot", "coth", "csc", "csch", "erf", "exp", "ln", "log", "pi", "sec",
    "sech", "sin", "sinh", "sqrt", "tan", "tanh",
))
# fmt: on
_EXPRESSION_CHARS = re.compile(r"[\w.+\-*/^()=,!\s]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*")
_ATTRIBUTE = re.compile(r"\.\s*[A-Za-z_]")


def main() -> None:
    """Reads calls from standard input and prints for each its score or error, as JSON."""
    results = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the package prints is no score
    os.write(results, json.dumps([_result(call) for call in json.load(sys.stdin)]).encode())
    os._exit(0)  # without the exit handlers of packages, such as one that removes a folder of the fork server


def _result(call: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"score": score(call)}
    except Exception as problem:  # a verifier of the package may raise anything
        return {"error": f"{type(problem).__name__}: {problem}"[:500]}


def score(call: dict[str, Any]) -> float:
    """Returns the verifier's score of an answer, in 0 to 1.

    call: `generator`, `settings`, `entry` (question, answer, metadata) and `answer`, the policy's. A verifier that
    raises cannot read the answer, if it scores the item's own answer correctly. Raises: what the verifier raises for
    the item's own answer.
    """
    generator = _generator(call["generator"], json.dumps(call["settings"]))
    answer, entry = call["answer"], call["entry"]
    if call["generator"] in GRID_GENERATORS:
        entry = {**entry, "metadata": {name: _as_tuples(value) for name, value in entry["metadata"].items()}}
    try:
        return float(generator.score_answer(answer, entry))
    except Exception:  # of any kind, by a text of the policy
        if float(generator.score_answer(entry["answer"], entry)) < 1:
            raise
        return 0.0


@lru_cache(maxsize=32)
def _generator(name: str, settings: str) -> Any:
    return import_module("reasoning_gym.factory").create_dataset(name, **json.loads(settings), seed=0, size=1)


def is_plain_expression(text: str) -> bool:
    """Returns whether a text has only numbers, single letters, known functions and operators.

    >>> is_plain_expression("2*x**2 + sin(x)"), is_plain_expression("().__class__"), is_plain_expression("open('x')")
    (True, False, False)
    """
    names = _NAME.findall(text)
    return (
        _EXPRESSION_CHARS.fullmatch(text) is not None
        and _ATTRIBUTE.search(text) is None
        and all((len(name) == 1 and name != "_") or name in _FUNCTIONS for name in names)
    )


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _guard() -> None:
    """Replaces what evaluates texts in the modules of the verifiers."""
    for name in EVALUATING_MODULES:
        vars(import_module(name))["eval"] = ast.literal_eval
    for name in PARSING_MODULES:
        names = vars(import_module(name))
        names["parse_expr"] = _plain_parser(names["parse_expr"])


def _plain_parser(parse: Any) -> Any:
    def parsed(text: str, *arguments: Any, **named: Any) -> Any:
        if not is_plain_expression(text):
            raise ValueError("the text is no plain expression")
        return parse(text, *arguments, **named)

    return parsed


_guard()
