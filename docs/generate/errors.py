"""Page of the errors, from the error types and from every raise of an error with a code."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from astraflow.contract import errors
from astraflow.contract.errors import AstraFlowError, type_code
from astraflow.runtime.service import exit_code
from astraflow.wire.errors import to_status
from docs.generate.page import Page, table

ROOT = Path(__file__).parents[2]
PACKAGES = ("astraflow", "maintainer", "web", "recipes")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RaisedError:
    """One raise of an error with a code for its cause."""

    code: str
    type: str
    message: str
    """Message with `{expression}` in place of values."""
    module: str


@cache
def raised_errors(root: Path = ROOT) -> tuple[RaisedError, ...]:
    """Returns every error with a literal `code=` in the project's packages, by code."""
    return tuple(sorted(error for path in _modules(root) for error in _raised(path, root)))


def _body() -> Iterator[str]:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AstraFlowError)]
    yield from (
        "## Types\n",
        "A type tells the caller how to react. Its own code is used by errors without a code for their cause.",
        "",
    )
    columns = ("type", "code", "gRPC status", "exit code", "meaning")
    yield from table(columns, (_type_row(kind) for kind in kinds if kind is not AstraFlowError))
    yield "\n## Codes\n"
    yield from table(("code", "type", "message", "raised by"), map(_code_row, raised_errors()))


def _type_row(kind: type[AstraFlowError]) -> tuple[str, ...]:
    problem = kind()
    status, _, _ = to_status(problem)
    return kind.__name__, f"`{type_code(kind)}`", status.name, str(exit_code(problem)), kind.__doc__ or ""


def _code_row(error: RaisedError) -> tuple[str, ...]:
    return f"`{error.code}`", error.type, error.message, f"`{error.module}`"


def _modules(root: Path) -> Iterator[Path]:
    for package in PACKAGES:
        yield from (path for path in sorted((root / package).rglob("*.py")) if "pb" not in path.parts)


def _raised(path: Path, root: Path) -> Iterator[RaisedError]:
    text = path.read_text()
    if "code=" not in text:
        return  # parsing takes most of the time
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            code = next((keyword.value for keyword in node.keywords if keyword.arg == "code"), None)
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if isinstance(code, ast.Constant) and isinstance(code.value, str) and name[:1].isupper() and node.args:
                module = ".".join(path.relative_to(root).with_suffix("").parts)
                yield RaisedError(code=code.value, type=name, message=_template(node.args[0]), module=module)


def _template(message: ast.expr) -> str:
    match message:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_template(part) for part in parts)
        case ast.FormattedValue(value=value):
            return "{" + ast.unparse(value) + "}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _template(left) + _template(right)
        case _:
            return "{" + ast.unparse(message) + "}"


PAGE = Page(name="errors", body=_body)
