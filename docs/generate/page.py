"""Parts that all generated reference pages share: heading, tables of cells, tables of options."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from astraflow.runtime.config.base import Config
from astraflow.runtime.config.toml import toml_text
from astraflow.runtime.plugins import Registry

REFERENCE = Path(__file__).parents[1] / "reference"
MARK = "Generated from the code"
"""Beginning of the last line that is written by hand."""

_WORDS = {bool: "true or false", int: "integer", float: "number", str: "text", Path: "path", Any: "value"}
_BOUNDS = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of docs/reference whose tables are computed from the code. Its head is written by hand, in its file."""

    name: str
    """File name without suffix."""
    body: Callable[[], Iterable[str]]
    """Returns the lines below the head."""
    is_committed: bool = False
    """Whether the file has the tables too; otherwise only the site has them."""

    @property
    def path(self) -> Path:
        """File of the page."""
        return REFERENCE / f"{self.name}.md"

    def text(self) -> str:
        """Returns the page as Markdown: the head of its file, which ends with the line of `MARK`, and the tables."""
        head, _, rest = self.path.read_text().partition(f"\n{MARK}")
        line = rest.partition("\n")[0]
        return "\n".join([f"{head}\n{MARK}{line}\n", *self.body(), ""])


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a table; none without rows."""
    lines = [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *lines] if lines else []


def cell(text: str) -> str:
    """Returns the text on one line, with escaped column separators."""
    return " ".join(text.split()).replace("|", "\\|")


def first_sentence(text: str) -> str:
    """Returns the first sentence of a docstring, on one line."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return f"{paragraph.partition('. ')[0].removesuffix('.')}."


def anchor(heading: str) -> str:
    """Returns the anchor of a heading, as sites and code hosts compute it."""
    kept = "".join(letter for letter in heading.lower() if letter.isalnum() or letter in "_- ")
    return kept.replace(" ", "-")


def options_table(options: type[Config], *, without: Sequence[type[Config]] = ()) -> list[str]:
    """Returns the table of the options that differ from those of the classes `without`; no lines without any."""
    shared = {(name, repr(field.default)) for base in without for name, field in base.model_fields.items()}
    own = {name: field for name, field in options.model_fields.items() if (name, repr(field.default)) not in shared}
    return table(("option", "type", "default", "meaning"), _option_rows(own, ""))


def _option_rows(fields: Mapping[str, FieldInfo], prefix: str) -> Iterator[Sequence[str]]:
    """Yields a row for each option, and for those of the tables inside: `warm_start.target_accuracy`."""
    for name, field in fields.items():
        yield f"`{prefix}{name}`", type_of(field), default_of(field), field.description or ""
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, Config):
                yield from _option_rows(inner.model_fields, f"{prefix}{name}.")


def default_of(field: FieldInfo) -> str:
    """Returns the default as TOML, `none`, `required`, or `computed` for one that depends on the machine."""
    if field.is_required():
        return "required"
    if field.default_factory is not None and not isinstance(field.default_factory, type):
        return "computed"
    default = field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return ""
    if default is None:
        return "none"
    text = toml_text(default.value if isinstance(default, Enum) else default)
    return "computed" if sys.executable in text else f"`{text}`"


def type_of(field: FieldInfo) -> str:
    """Returns the type of an option in words, with its bounds."""
    registry = next((mark for mark in field.metadata if isinstance(mark, Registry)), None)
    if registry is not None:
        return plugin_type(registry.noun)
    bounds = [
        f"{words} {getattr(mark, name):g}" for name, words in _BOUNDS for mark in field.metadata if hasattr(mark, name)
    ]
    return " ".join([_words(field.annotation), ", ".join(bounds)]).strip()


def plugin_type(title: str, *, many: bool = False) -> str:
    """Returns the type of an option that has plugins, with a link to their kinds."""
    return f"{'list of ' if many else ''}[{title}](plugins.md#{anchor(title)})"


def _words(annotation: Any) -> str:
    arguments = [argument for argument in get_args(annotation) if argument not in (NoneType, ...)]
    origin = get_origin(annotation)
    if origin is Annotated:
        return _words(arguments[0])
    if origin is Literal:
        return " or ".join(f"`{toml_text(choice)}`" for choice in get_args(annotation))
    if origin in (tuple, list, frozenset, set, Sequence):
        words = _words(arguments[0]) if arguments else ""
        return f"list of {words}s" if words.isalpha() else f"list of {words}".removesuffix(" of ")
    if origin in (dict, Mapping) or annotation is dict:
        return f"{_words(arguments[1])} by name" if arguments and arguments[1] is not Any else "table"
    if arguments:
        return " or ".join(dict.fromkeys(map(_words, arguments)))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"`{toml_text(member.value)}`" for member in annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    return _WORDS.get(annotation, getattr(annotation, "__name__", "value"))
