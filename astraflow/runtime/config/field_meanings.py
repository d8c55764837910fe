"""Meanings of the fields of a class: the docstrings below them in its source, of which Python keeps none."""

import ast
from collections.abc import Mapping
from functools import cache
from inspect import getsource
from itertools import pairwise
from sys import modules


def field_meanings(kind: type) -> Mapping[str, str]:
    """Returns the docstrings of the fields and properties of a class and its bases; fields without one are absent.

    >>> from astraflow.contract.fleet.plans import Plan
    >>> from astraflow.contract.fleet.pools import Pool
    >>> field_meanings(Pool)["losses"]
    'Nodes that worked and were preempted or lost within the last hour, by cause.'
    >>> field_meanings(Plan)["needs_approval"]
    'Returns whether another actor must approve it.'
    """
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        meanings |= _classes_of(base.__module__).get(base.__qualname__, {})
        properties = {name: value.__doc__ for name, value in vars(base).items() if isinstance(value, property)}
        meanings |= {name: _in_one_line(text) for name, text in properties.items() if text}
    return meanings


@cache
def _classes_of(module: str) -> Mapping[str, Mapping[str, str]]:
    """Returns the meanings of the fields of each top-level class of a module; none for a module without source."""
    try:
        body = ast.parse(getsource(modules[module])).body
    except (OSError, TypeError):  # a module in C, or of an interactive session
        return {}
    return {node.name: dict(_fields(node.body)) for node in body if isinstance(node, ast.ClassDef)}


def _fields(body: list[ast.stmt]) -> list[tuple[str, str]]:
    """Returns name and docstring of each annotated assignment that a docstring follows."""
    return [
        (statement.target.id, _in_one_line(following.value.value))
        for statement, following in pairwise(body)
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
        and isinstance(following.value.value, str)
    ]


def _in_one_line(text: str) -> str:
    return " ".join(text.split())
