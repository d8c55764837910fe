"""Parts that all generated reference pages share: heading, tables of cells, tables of options."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic.fields import FieldInfo

from astraflow.runtime.config import Config
from astraflow.runtime.toml import toml_text

REFERENCE = Path(__file__).parents[1] / "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of docs/reference that is computed from the code."""

    name: str
    """File name without suffix."""
    title: str
    head: str
    """Paragraphs between the title and the tables."""
    body: Callable[[], Iterable[str]]
    """Returns the lines below the head."""

    @property
    def path(self) -> Path:
        """File of the page."""
        return REFERENCE / f"{self.name}.md"

    def text(self) -> str:
        """Returns the page as Markdown."""
        head = f"{self.head.strip()}\n\nGenerated from the code by `python -m docs.generate`.\n"
        return "\n".join([f"# {self.title}\n", head, *self.body(), ""])


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a table; none without rows."""
    lines = [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *lines] if lines else []


def cell(text: str) -> str:
    """Returns the text on one line, with escaped column separators."""
    return " ".join(text.split()).replace("|", "\\|")


def options_table(options: type[Config], *, without: Sequence[type[Config]] = ()) -> list[str]:
    """Returns the table of the options that differ from those of the classes `without`; no lines without any."""
    shared = {(name, repr(field.default)) for base in without for name, field in base.model_fields.items()}
    own = {name: field for name, field in options.model_fields.items() if (name, repr(field.default)) not in shared}
    rows = ((f"`{name}`", default_of(field), field.description or "") for name, field in own.items())
    return table(("option", "default", "meaning"), rows)


def default_of(field: FieldInfo) -> str:
    """Returns the default as TOML, `none`, or `required`."""
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    return "none" if default is None else f"`{toml_text(default)}`"
