"""Names use the terms of docs/reference/glossary.md, not the retired words."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

RETIRED = {
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

WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

VAGUE_SUBJECT = re.compile(
    r"test_(it|its|they|who|whose|which|that|what_(is|was|are|were|has|had|can|cannot|may|would))_"
)
"""Beginnings of test names without a subject, such as `test_what_is_lost_...` instead of `test_lost_nodes_...`."""


@cache
def declared_names(path: Path) -> tuple[str, ...]:
    """Returns the names of the module and of the classes, functions, arguments and fields that it declares."""
    return tuple(_declared_names(path))


def _declared_names(path: Path) -> Iterator[str]:
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.arg(arg=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name


@pytest.mark.parametrize("package", ["astraflow", "maintainer", "web", "recipes", "tests"])
def test_no_name_uses_a_retired_or_vague_word(package: str) -> None:
    violations = [
        f"{path.relative_to(ROOT)}: {name}: use {RETIRED.get(word.lower(), 'a noun of docs/reference/glossary.md')!r}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if "_pb2" not in path.name and "versions" not in path.parts
        for name in declared_names(path)
        for word in WORD.findall(name)
        if word.lower() in RETIRED.keys() | VAGUE
    ]
    assert not violations, "\n".join(violations)


def test_names_of_tests_begin_with_their_subject() -> None:
    violations = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in declared_names(path)
        if VAGUE_SUBJECT.match(name)
    ]
    assert not violations, "\n".join(violations)


def test_the_glossary_has_every_replacement() -> None:
    glossary = (ROOT / "docs/reference/glossary.md").read_text().lower()
    assert not [term for term in RETIRED.values() if term.lower() not in glossary]
