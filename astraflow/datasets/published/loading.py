"""Common parts of the loaders of published datasets: location of a set, and its rows as prompts."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Self, TypeAlias

from pydantic import Field, model_validator

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.datasets.base import check_index, path_remedy
from astraflow.datasets.tables.arrow import ArrowTable, DatasetSource
from astraflow.datasets.tables.base import RequiredFields, RowRange, Table, check_fields, plain
from astraflow.datasets.tables.lines import LineTable
from astraflow.datasets.tables.shards import ShardTable
from astraflow.runtime.config.base import Config, suggest_name
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.folders.data_root import RemoteSource, SourceKind, parts_of

SAMPLES = Path(__file__).parents[1] / "samples"
"""A few made-up rows of each set, in its published layout."""

RowReader: TypeAlias = Callable[[Mapping[str, Json], str], dict[str, Json]]
"""Converts a row, and its location for messages, to the fields of a prompt."""

_CACHE_BYTES = 256_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSet:
    """A dataset on the hub, and the fields that its rows must have."""

    hub: str
    split: str
    required_fields: RequiredFields
    config: str = ""
    files: tuple[str, ...] = ()
    """Files of the repository, where its card does not list them."""


class PublishedOptions(Config):
    """Published set to use, and its location."""

    name: Annotated[str, SettableBy.AGENT]
    """Name of the set."""
    path: Annotated[str, SettableBy.DATA_LOCATION] = ""
    """A copy of the set: a file (JSON lines, Parquet, JSON, Arrow, CSV), a folder written by `save_to_disk` or
    `hf download`, a folder or a URL of Parquet files. Empty: the hub."""
    is_sample: Annotated[bool, SettableBy.AGENT] = False
    """Use a few made-up rows in the same layout, which need no network."""
    revision: Annotated[str, SettableBy.RECIPE] = ""
    """Commit on the hub; set one for reproducible runs."""
    cache: Annotated[str, SettableBy.RECIPE] = ""
    """Folder for downloads and their conversion to Arrow; empty: the library's default."""
    limit: int = Field(default=0, ge=0)
    """Number of first rows to use; 0: all."""

    location_option: ClassVar[str] = "path"

    def _hub_source(self, published: PublishedSet) -> RemoteSource | None:
        """Returns the repository of a set on the hub; None for a copy or a sample."""
        if self.path or self.is_sample:
            return None
        parts = parts_of(published.files, published.config)
        return RemoteSource(kind=SourceKind.DATASET, name=published.hub, revision=self.revision, parts=parts)

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.is_sample and (self.path or self.revision):
            raise ValueError("a sample has no path and no revision; leave out `is_sample`, or path and revision")
        return self


class PublishedPrompts:
    """Rows of a published set, read into the common form of its family."""

    def __init__(self, options: PublishedOptions, published: PublishedSet, read: RowReader) -> None:
        table = _table(options, published)
        self._table = RowRange(table, limit=options.limit) if options.limit else table
        self._required_fields = published.required_fields
        self._read = read
        self._prefix = f"sample/{options.name}" if options.is_sample else options.name

    @property
    def size(self) -> int:
        """Number of rows."""
        return self._table.size

    @property
    def fingerprint(self) -> str:
        return self._table.fingerprint

    def prompt(self, index: int) -> Prompt:
        """Returns a row in the form of its family."""
        check_index(index, self.size)
        row, where = self._table.row(index), self._table.where(index)
        check_fields(row, self._required_fields, where)
        return Prompt(
            id=PromptId(f"{self._prefix}:{self._table.key(index)}"),
            fields={name: plain(value) for name, value in self._read(row, where).items()},
        )


def check_set_name(name: str, known: Collection[str]) -> str:
    """Checks the name of a set, for validators. Raises: ValueError with the closest known name."""
    if name not in known:
        raise ValueError(f"unknown dataset {name!r}; {suggest_name(name, list(known))}")
    return name


def fill_template(template: str, **values: str) -> str:
    """Replaces the `{names}` in a template; other braces stay, since problems and code are full of them.

    >>> fill_template("{question} Use \\\\boxed{}.", question="1+1?")
    '1+1? Use \\\\boxed{}.'
    """
    for name, value in values.items():
        template = template.replace(f"{{{name}}}", value)
    return template


def _table(options: PublishedOptions, published: PublishedSet) -> Table:
    required_fields = published.required_fields
    if options.is_sample:
        return LineTable(str(SAMPLES / f"{options.name}.jsonl"), required_fields)
    if options.path.endswith(".jsonl") and "://" not in options.path:
        return LineTable(options.path, required_fields)
    local_path = Path(options.path).expanduser()
    is_parquet = options.path.endswith(".parquet") or "*" in options.path or "://" in options.path
    if is_parquet or (options.path and local_path.is_dir() and not _is_datasets_folder(local_path, published)):
        return ShardTable(options.path, required_fields, cache_bytes=_CACHE_BYTES)
    if options.path and not local_path.exists():
        raise InvalidInput(
            f"cannot read dataset {str(local_path.absolute())!r}: no such file or folder; {path_remedy(options.path)}",
            code="dataset.not_found",
        )
    return ArrowTable(_source(options, published, local_path), required_fields)


def _is_datasets_folder(folder: Path, published: PublishedSet) -> bool:
    """Returns whether the `datasets` library can load the folder: it saved it, a card describes it, or it has the known
    files of the set."""
    if published.files and all((folder / name).is_file() for name in published.files):
        return True
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json", "README.md"))


def _source(options: PublishedOptions, published: PublishedSet, local_path: Path) -> DatasetSource:
    has_files = all((local_path / name).is_file() for name in published.files)
    return DatasetSource(
        path=options.path or published.hub,
        split=published.split,
        config=published.config,
        revision=options.revision,
        files=published.files if has_files or not options.path else (),
        cache=options.cache,
    )
