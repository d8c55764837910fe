"""What the loaders of published data sets share: where a set is had from, and how its rows become prompts."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self, TypeAlias

from pydantic import Field, model_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.datasets.base import check_index
from astraflow.datasets.tables.arrow import ArrowTable, Origin
from astraflow.datasets.tables.base import Head, Table, Wanted, check_fields
from astraflow.datasets.tables.lines import LineTable
from astraflow.datasets.tables.shards import ShardTable
from astraflow.runtime.config import Config, nearest
from astraflow.runtime.overrides import SetBy

SAMPLES = Path(__file__).parent / "samples"
"""A few made-up rows of each set, as it is published."""

Read: TypeAlias = Callable[[Mapping[str, Json], str], dict[str, Json]]
"""From a row and its place, for messages, to the fields of a prompt."""

_CACHE_BYTES = 256_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A data set on the hub, and what its rows must have for us."""

    hub: str
    split: str
    wanted: Wanted
    config: str = ""
    files: tuple[str, ...] = ()
    """Of the repository, where its card does not lead to them."""


class KnownOptions(Config):
    """Which published set, and where it is."""

    name: Annotated[str, SetBy.AGENT]
    """Which one."""
    path: Annotated[str, SetBy.PLACE] = ""
    """A copy of it: a file (JSON lines, Parquet, JSON, Arrow, CSV), a folder that `save_to_disk` or `hf download`
    wrote, a folder or an address of Parquet files. Empty asks the hub."""
    is_sample: bool = False
    """A handful of made-up rows in the same layout, which need no network."""
    revision: Annotated[str, SetBy.RECIPE] = ""
    """Commit on the hub; name one for a run that can be repeated."""
    cache: Annotated[str, SetBy.RECIPE] = ""
    """Folder for what is fetched and converted to Arrow; the library's own when empty."""
    limit: int = Field(default=0, ge=0)
    """Only the first so many rows; 0 is all."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.is_sample and (self.path or self.revision):
            raise ValueError("a sample has no path and no revision: leave out `is_sample`, or them")
        return self


class KnownPrompts:
    """The rows of a published set, read into one shape for its family."""

    def __init__(self, options: KnownOptions, published: Published, read: Read) -> None:
        table = _table(options, published)
        self._table = Head(table, options.limit) if options.limit else table
        self._wanted = published.wanted
        self._read = read
        self._prefix = f"sample/{options.name}" if options.is_sample else options.name

    @property
    def size(self) -> int:
        """Rows."""
        return self._table.size

    @property
    def fingerprint(self) -> str:
        """The table's."""
        return self._table.fingerprint

    def prompt(self, index: int) -> Prompt:
        """A row, as its family has it."""
        check_index(index, self.size)
        row, where = self._table.row(index), self._table.where(index)
        check_fields(row, self._wanted, where)
        return Prompt(id=PromptId(f"{self._prefix}:{self._table.key(index)}"), fields=self._read(row, where))


def known_name(name: str, known: Collection[str]) -> str:
    """For validators. Raises: ValueError that names the nearest one."""
    if name not in known:
        raise ValueError(f"no such data set; {nearest(name, list(known))}")
    return name


def filled(template: str, **values: str) -> str:
    """A template with its `{names}` replaced; every other brace stays, since problems and code are full of them.

    >>> filled("{question} Use \\\\boxed{}.", question="1+1?")
    '1+1? Use \\\\boxed{}.'
    """
    for name, value in values.items():
        template = template.replace(f"{{{name}}}", value)
    return template


def _table(options: KnownOptions, published: Published) -> Table:
    wanted = published.wanted
    if options.is_sample:
        return LineTable(str(SAMPLES / f"{options.name}.jsonl"), wanted)
    if options.path.endswith(".jsonl") and "://" not in options.path:
        return LineTable(options.path, wanted)
    here = Path(options.path).expanduser()
    is_parquet = options.path.endswith(".parquet") or "*" in options.path or "://" in options.path
    if is_parquet or (options.path and here.is_dir() and not _is_described(here)):
        return ShardTable(options.path, wanted, cache_bytes=_CACHE_BYTES)
    if options.path and not here.exists():
        raise InvalidInput(f"dataset {here.absolute()} cannot be read: there is no such file or folder")
    return ArrowTable(_origin(options, published, here), wanted)


def _is_described(folder: Path) -> bool:
    """Whether the `datasets` library knows what the folder is: it saved it itself, or its card says so."""
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json", "README.md"))


def _origin(options: KnownOptions, published: Published, here: Path) -> Origin:
    has_files = all((here / name).is_file() for name in published.files)
    return Origin(
        path=options.path or published.hub,
        split=published.split,
        config=published.config,
        revision=options.revision,
        files=published.files if has_files or not options.path else (),
        cache=options.cache,
    )
