"""Names use the terms of docs/reference/glossary.md, not the retired words."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

RETIRED = {
    "crew": "rank group",
    "bell": "notifier",
    "fate": "outcome",
    "fates": "outcome",
    "handout": "assignment",
    "joints": "multipart publish",
    "liaison": "maintainer",
    "lingering": "retired versions",
    "rehearsal": "preflight",
    "rehearse": "preflight",
    "rehearsing": "preflight",
    "seam": "plugin slot",
    "unkept": "null journal",
    "aftermath": "follow-up",
    "unsettled": "pending action",
    "sparing": "non-destructive",
}
"""Retired words, each with its replacement."""

VAGUE = {"anybody", "everybody", "nobody", "somebody", "whoever"}
"""Words that name no part of the system and no role."""

VAGUE_VARIABLES = {
    "asked",
    "found",
    "given",
    "got",
    "heard",
    "made",
    "one",
    "ones",
    "place",
    "said",
    "seen",
    "taken",
    "told",
}
"""Names of variables that do not say what the value is, such as `found` instead of `matching_nodes`."""

PACKAGES = ("astraflow", "maintainer", "web", "recipes", "tests", "benchmarks", "soak")

WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

VAGUE_SUBJECT = re.compile(
    r"test_(it|its|they|who|whose|which|that|what_(is|was|are|were|has|had|can|cannot|may|would))_"
)
"""Beginnings of test names without a subject, such as `test_what_is_lost_...` instead of `test_lost_nodes_...`."""


DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
CAPTURES = (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)


class Names(NamedTuple):
    """Names that a module declares."""

    declared: tuple[str, ...]
    """The module and its classes, functions, arguments and fields."""
    variables: frozenset[str]
    """Variables and arguments, without fields of classes."""


@cache
def names_in(path: Path) -> Names:
    declared, variables, fields = [path.stem], list[str](), set[ast.AST]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store) and node not in fields:
                variables.append(node.id)
        elif isinstance(node, ast.arg):
            declared.append(node.arg)
            variables.append(node.arg)
        elif isinstance(node, DEFINITIONS):
            declared.append(node.name)
            if isinstance(node, ast.ClassDef):
                fields.update(_fields(node))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            declared.append(node.target.id)
        elif isinstance(node, CAPTURES) and node.name is not None:
            variables.append(node.name)
    return Names(declared=tuple(declared), variables=frozenset(variables))


def _fields(definition: ast.ClassDef) -> Iterator[ast.AST]:
    for statement in definition.body:
        if isinstance(statement, ast.AnnAssign):
            yield statement.target
        elif isinstance(statement, ast.Assign):
            yield from statement.targets


def sources(package: str) -> list[Path]:
    """Returns the files of a package, without generated ones."""
    files = sorted((ROOT / package).rglob("*.py"))
    return [path for path in files if "_pb2" not in path.name and "versions" not in path.parts]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_uses_a_retired_or_vague_word(package: str) -> None:
    violations = [
        f"{path.relative_to(ROOT)}: {name}: use {RETIRED.get(word.lower(), 'a noun of docs/reference/glossary.md')!r}"
        for path in sources(package)
        for name in names_in(path).declared
        for word in WORD.findall(name)
        if word.lower() in RETIRED.keys() | VAGUE
    ]
    assert not violations, "\n".join(violations)


def test_variables_say_what_they_hold() -> None:
    violations = [
        f"{path.relative_to(ROOT)}: {name}: say what the value is"
        for package in (*PACKAGES, "docs")
        for path in sources(package)
        for name in sorted(VAGUE_VARIABLES & names_in(path).variables)
    ]
    assert not violations, "\n".join(violations)


@pytest.mark.parametrize(
    ("source", "vague"),
    [
        ("for one in nodes: place = one", ["one", "place"]),
        ("def count(*given, found=0): ...", ["found", "given"]),
        ("[taken for taken in leases if (told := taken.node)]", ["taken", "told"]),
        ("match reply:\n    case [made, *seen]: ...", ["made", "seen"]),
        ("class Line:\n    found: str\n    heard = 0\n    def shown(self): self.said = self.found", []),
        ("from hypothesis import given\nplan(found=1)", []),
    ],
)
def test_a_vague_variable_is_reported_and_a_field_is_not(tmp_path: Path, source: str, vague: list[str]) -> None:
    module = tmp_path / "module.py"
    module.write_text(source)
    assert sorted(VAGUE_VARIABLES & names_in(module).variables) == vague


def test_names_of_tests_begin_with_their_subject() -> None:
    violations = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in names_in(path).declared
        if VAGUE_SUBJECT.match(name)
    ]
    assert not violations, "\n".join(violations)


def test_the_glossary_has_every_replacement() -> None:
    glossary = (ROOT / "docs/reference/glossary.md").read_text().lower()
    assert not [term for term in RETIRED.values() if term.lower() not in glossary]
