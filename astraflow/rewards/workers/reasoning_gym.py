"""Verifiers of reasoning-gym, in a worker process: some search, and some would execute the text that they verify.

Four verifiers evaluate the answer as Python: here they read literals only. Four others give it to sympy's parser, which
evaluates it as well: here an answer that is no plain expression is wrong.
"""

import ast
import re
from importlib import import_module
from typing import Any

from astraflow.datasets.generated.reasoning_gym import build_generator

EVALUATING_MODULES = (
    "reasoning_gym.algorithmic.binary_matrix",
    "reasoning_gym.algorithmic.spiral_matrix",
    "reasoning_gym.algorithmic.string_insertion",
    "reasoning_gym.games.n_queens",
)
"""Modules whose verifiers call `eval` on the answer."""

PARSING_GENERATORS = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "simple_integration"}
)
"""Generators whose verifiers call `sympy.parse_expr` on the answer."""

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

for _module in EVALUATING_MODULES:
    import_module(_module).__dict__["eval"] = ast.literal_eval


def score(call: dict[str, Any]) -> float:
    """Returns the verifier's score of an answer, in 0 to 1.

    call: `generator`, `settings`, `entry` (question, answer, metadata) and `answer`, the policy's. A verifier that
    raises cannot read the answer, if it scores the item's own answer correctly. Raises: what the verifier raises for
    the item's own answer.
    """
    generator = build_generator(call["generator"], call["settings"])
    answer, entry = call["answer"], call["entry"]
    if call["generator"] in PARSING_GENERATORS and not is_plain_expression(answer):
        return 0.0
    if call["generator"] in GRID_GENERATORS:
        entry = {**entry, "metadata": {name: _as_tuples(value) for name, value in entry["metadata"].items()}}
    try:
        return float(generator.score_answer(answer, entry))
    except Exception:  # of any kind, by a text of the policy
        if float(generator.score_answer(entry["answer"], entry)) < 1:
            raise
        return 0.0


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
