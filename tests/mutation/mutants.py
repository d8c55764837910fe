"""Mutants of a module: the same code with one operator, constant, condition or statement changed.

Only bodies of functions change, so that a mutant is installed by an exchange of code objects, also below decorators and
in a process that has imported the module. Functions that the import itself calls stay, because their results are bound
then. Annotations, docstrings, log calls and texts with spaces stay: tests assert codes and values, not wording.
"""

import ast
import difflib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

_PAIRS = (
    "Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, And Or, Add Sub, Mult Div, LShift RShift, BitAnd BitOr, "
    "min max, any all, minimum maximum, amin amax, floor ceil"
)
_ONE_WAY = "FloorDiv Mult, Mod FloorDiv, Pow Mult, BitXor BitOr, zeros ones, zeros_like ones_like"
SWAPS = {before: after for pair in f"{_PAIRS}, {_ONE_WAY}".split(", ") for before, after in [pair.split()]}
SWAPS |= {after: before for pair in _PAIRS.split(", ") for before, after in [pair.split()]}
"""Operators by their class in `ast`, and names of functions."""
IDENTIFIER = re.compile(r"[\w.:-]+")
UNCHANGED_FIELDS = {"annotation", "returns", "decorator_list", "args"}

Codes = dict[tuple[str, int], CodeType]
"""Code objects of a module by the qualified name and the first line of the function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of a module: another node in a field of `holder`."""

    path: Path
    function: str
    lines: frozenset[int]
    """First lines of the statement and of the changed expression."""
    tree: ast.Module
    statement: ast.stmt
    holder: ast.AST
    field: str
    index: int | None
    """Position if the field is a list."""
    replacement: ast.AST

    @property
    def key(self) -> str:
        """Name that stays until the statement changes."""
        return f"{self.path}:{self.function}: {' '.join(self.diff().split())}"

    def diff(self) -> str:
        """Returns the lines before and after, as `ast` writes them; of a long statement, the changed expression."""
        is_long = len(ast.unparse(self.statement)) > 140 and isinstance(self.holder, ast.expr)
        shown = self.holder if is_long else self.statement
        before = ast.unparse(shown).splitlines()
        with self._applied():
            is_statement = isinstance(self.replacement, ast.stmt)
            after = ast.unparse(self.replacement if is_statement else shown).splitlines()
        return "\n".join(f"{line[0]} {line[1:].strip()}" for line in difflib.ndiff(before, after) if line[0] in "-+")

    def codes(self) -> Codes:
        """Compiles the changed module."""
        with self._applied():
            return _codes(compile(self.tree, str(self.path), "exec"))

    @contextmanager
    def _applied(self) -> Iterator[None]:
        original = getattr(self.holder, self.field)
        value: Any = self.replacement
        if self.index is not None:
            value = [*original[: self.index], self.replacement, *original[self.index + 1 :]]
        setattr(self.holder, self.field, value)
        try:
            yield
        finally:
            setattr(self.holder, self.field, original)


def mutants_of(path: Path) -> list[Mutant]:
    """Returns all mutants of a module, in the order of its lines. Raises: SyntaxError."""
    tree = ast.parse(path.read_text())
    bound = {node.value.func for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)}
    names = {ast.unparse(function) for function in bound}
    functions = ((node, name) for node, name in _functions(tree, "") if name not in names)
    return [mutant for node, name in functions for mutant in _changes(path, tree, name, node, None)]


def _codes(module: CodeType) -> Codes:
    nested = [constant for constant in module.co_consts if isinstance(constant, CodeType)]
    codes = {(code.co_qualname, code.co_firstlineno): code for code in nested}
    return codes | {key: code for each in nested for key, code in _codes(each).items()}


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[ast.AST, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child, prefix + child.name
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _changes(
    path: Path, tree: ast.Module, function: str, node: ast.AST, statement: ast.stmt | None
) -> Iterator[Mutant]:
    """Yields the mutants below a node. statement: the innermost one around it."""
    for field, value in ast.iter_fields(node):
        if field in UNCHANGED_FIELDS and not isinstance(node, ast.Call):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or _stays(child):
                continue
            inner = child if isinstance(child, ast.stmt) else statement
            assert inner is not None
            for replacement in _replacements(child, is_condition=field in {"test", "ifs"}):
                line = getattr(child, "lineno", getattr(node, "lineno", inner.lineno))
                yield Mutant(
                    path=path,
                    function=function,
                    lines=frozenset({line, inner.lineno}),
                    tree=tree,
                    statement=inner,
                    holder=node,
                    field=field,
                    index=index,
                    replacement=ast.fix_missing_locations(ast.copy_location(replacement, child)),
                )
            yield from _changes(path, tree, function, child, inner)


def _stays(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or ast.unparse(node.value).startswith("log.")
    return isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom | ast.match_case)


def _replacements(node: ast.AST, *, is_condition: bool) -> Iterator[ast.AST]:
    if (operator := SWAPS.get(type(node).__name__)) is not None:
        yield getattr(ast, operator)()
    match node:
        case ast.Constant(value=bool(value)):
            yield ast.Constant(value=not value)
        case ast.Constant(value=int() | float() as number):
            yield ast.Constant(value=number + 1)
        case ast.Constant(value=str(text)) if IDENTIFIER.fullmatch(text):
            yield ast.Constant(value=f"X{text}")
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield operand
        case ast.Name(id=name) if name in SWAPS:
            yield ast.Name(id=SWAPS[name], ctx=ast.Load())
        case ast.Attribute(value=value, attr=name) if name in SWAPS:
            yield ast.Attribute(value=value, attr=SWAPS[name], ctx=ast.Load())
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Return(value=None)
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.Delete():
            yield ast.Pass()
        case ast.Assign(targets=targets) if all(isinstance(each, ast.Attribute | ast.Subscript) for each in targets):
            yield ast.Pass()
    if is_condition and isinstance(node, ast.Name | ast.Attribute | ast.Call):
        yield ast.UnaryOp(op=ast.Not(), operand=node)
