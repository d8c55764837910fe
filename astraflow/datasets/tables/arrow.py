"""Tables of the Hugging Face `datasets` library: Arrow files, mapped into memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.contract.values import Json
from astraflow.datasets.base import check_index, path_remedy
from astraflow.datasets.tables.base import RequiredFields, fingerprint_of, import_optional
from astraflow.datasets.tables.columns import check_values, chosen_columns, is_rounded, json_row
from astraflow.datasets.tables.shards import CHECKED_BYTES
from astraflow.datasets.tables.text_files import check_csv_file, check_json_file

_BUILDERS = frozenset({"arrow", "cache", "csv", "json", "parquet", "text"})
"""Accepted builders. The library also has builders for archives, some of which can contain pickles."""

_FORMATS = {".arrow": "arrow", ".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}

_TEXT_CHECKS = {"csv": check_csv_file, "json": check_json_file}

_UNREADABLE = (OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError)
"""Errors of the library for files that it cannot read; the last three for metadata of another shape."""

_CHECKED_AT_ONCE = 10_000
"""Rows that are checked at once when the table is opened. Count."""
_SAMPLED = 64
"""Rows in the fingerprint, evenly spaced over the table. Count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSource:
    """Location of a dataset of the library."""

    path: str
    """A folder written by `save_to_disk`, a file, a folder of files, or a name on the hub."""
    split: str = "train"
    config: str = ""
    revision: str = ""
    files: tuple[str, ...] = ()
    """Files of the repository; empty: all files of the split."""
    cache: str = ""
    """Folder for downloads and conversions; empty: the library's default."""


class ArrowTable:
    """Rows of one split. They stay on disk, in any number."""

    def __init__(self, origin: DatasetSource, required_fields: RequiredFields, *, fields: Sequence[str] = ()) -> None:
        written = [name for name, kinds in required_fields.items() if {str, float} <= set(kinds)]
        dataset, self._may_round = _loaded(origin, written)
        self._path = origin.path
        columns = chosen_columns(dataset.features.arrow_schema, required_fields, fields, origin.path)
        self._rows = dataset.select_columns(columns).with_format("arrow")
        self.size = len(dataset)
        if not self.size:
            raise InvalidInput(
                f"cannot use dataset {origin.path!r}: its split {origin.split!r} has no rows; choose another split",
                code="dataset.empty",
            )
        for name in required_fields:
            if empty := dataset.data.column(name).null_count:
                raise InvalidInput(
                    f"cannot use dataset {origin.path!r}: column {name!r} has {empty} rows without a value; remove "
                    "them, or choose another column",
                    code="dataset.missing_values",
                )

        self._check_rows(required_fields)

    def _check_rows(self, required_fields: RequiredFields) -> None:
        """Checks the first rows, up to `CHECKED_BYTES`. Raises: InvalidInput with the first unusable row."""
        checked_bytes = 0
        for first in range(0, self.size, _CHECKED_AT_ONCE):
            rows = self._rows[first : first + _CHECKED_AT_ONCE]
            check_values(rows, required_fields, partial(self._where_in, first))
            if rounded := self._may_round and [name for name in rows.column_names if is_rounded(rows.column(name))]:
                raise InvalidInput(
                    f"cannot use dataset {self._path!r}: column {rounded[0]!r} has whole numbers above 2**53 beside "
                    "fractions or empty cells, which rounds them; write them as text, choose other columns with "
                    "`fields`, or use the kind 'jsonl'",
                    code="dataset.rounded_numbers",
                )
            checked_bytes += rows.nbytes
            if checked_bytes > CHECKED_BYTES:
                return

    def _where_in(self, first: int, index: int) -> str:
        return self.where(first + index)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the columns, the number of rows, their bytes and a sample of rows."""
        samples = sorted({sample * self.size // _SAMPLED for sample in range(_SAMPLED)})
        return fingerprint_of(self._rows.column_names, self.size, self._rows.data.nbytes, *map(self.row, samples))

    def row(self, index: int) -> dict[str, Json]:
        """Returns row number `index` of the split."""
        check_index(index, self.size)
        return json_row(self._rows[index], self.where(index))

    def where(self, index: int) -> str:
        """Returns dataset and row, for messages."""
        return f"{self._path}, row {index}"

    def key(self, index: int) -> str:
        """Returns the number of the row, counted from 0."""
        return f"row:{index}"


def _loaded(origin: DatasetSource, written: Sequence[str]) -> tuple[Any, bool]:
    """Loads a `datasets.Dataset`; returns also whether its file has whole numbers that the library may have rounded.

    written: columns of a CSV file that stay text as it is written.
    Raises: InvalidInput with a remedy.
    """
    library = import_optional("datasets")
    library.disable_progress_bars()  # a service writes logs
    local_path = Path(origin.path).expanduser()
    saved_as = [local_path / name for name in ("state.json", "dataset_dict.json")]
    try:
        if any(path.is_file() for path in saved_as):
            return _split_of(library.load_from_disk(str(local_path)), origin), False
        return _built(library, origin, local_path, written)
    except ConnectionError as problem:
        raise InvalidInput(_unreachable(origin), code="dataset.hub_unreachable") from problem
    except import_optional("huggingface_hub.errors").HfHubHTTPError as problem:
        raise InvalidInput(
            f"cannot load dataset {origin.path!r}: the hub refused it: {problem}; check the name and HF_TOKEN",
            code="dataset.hub_refused",
        ) from problem
    except (*_UNREADABLE, library.exceptions.DatasetsError) as problem:
        raise InvalidInput(
            f"cannot load dataset {origin.path!r}: {_cause(problem)}; check the file, and the options",
            code="dataset.unreadable",
        ) from problem
    except Exception as problem:  # network errors have types of several libraries
        if not _is_network(problem):
            raise
        raise InvalidInput(_unreachable(origin), code="dataset.hub_unreachable") from problem


def _cause(problem: BaseException) -> str:
    """Returns the text of the first cause: that of the library only says that it could not generate the dataset."""
    while problem.__cause__ is not None:
        problem = problem.__cause__
    return f"{type(problem).__name__}: {str(problem)[:500]}"


def _split_of(loaded: Any, origin: DatasetSource) -> Any:
    if not isinstance(loaded, dict):
        return loaded
    if origin.split not in loaded:
        raise InvalidInput(
            f"cannot load dataset {origin.path!r}: it has no split {origin.split!r}; choose from "
            f"{', '.join(sorted(loaded))}",
            code="dataset.unknown_split",
        )
    return loaded[origin.split]


def _built(library: Any, origin: DatasetSource, local_path: Path, written: Sequence[str]) -> tuple[Any, bool]:
    arguments = {"cache_dir": origin.cache or None, **_arguments(origin, local_path)}
    builder = library.load_dataset_builder(**arguments)
    kind = type(builder).__module__.split(".")[2]
    if kind not in _BUILDERS:
        raise InvalidInput(
            f"cannot load dataset {origin.path!r}: its format {kind!r} is not supported; use one of "
            f"{', '.join(sorted(_BUILDERS))}",
            code="dataset.unknown_format",
        )
    if kind == "csv":
        builder = library.load_dataset_builder(**arguments, converters=dict.fromkeys(written, _cell_text))
    may_round = kind in _TEXT_CHECKS and _check_files(builder, _TEXT_CHECKS[kind])
    builder.download_and_prepare()
    return builder.as_dataset(split=origin.split), may_round


def _check_files(builder: Any, check: Callable[[Path], bool]) -> bool:
    """Checks the local files of a builder now, and others when they have been downloaded; returns whether a local one
    has numbers that may be rounded. Raises: InvalidInput."""
    local = [Path(file) for files in builder.config.data_files.values() for file in files if Path(file).is_file()]
    generators = builder._split_generators

    def checked(manager: Any, **options: Any) -> Any:
        for files in manager.download(builder.config.data_files).values():
            for file in files:
                check(Path(file))
        return generators(manager, **options)

    if not local:
        builder._split_generators = checked
    return sum(map(check, local)) > 0  # checks each


def _cell_text(text: str) -> str | None:
    """Returns a cell of a CSV file as it is written, None for an empty one."""
    return text or None


def _arguments(origin: DatasetSource, local_path: Path) -> dict[str, Any]:
    """Returns the arguments of `load_dataset_builder`. Single files are read as the requested split."""
    if local_path.is_file():
        files = [str(local_path)]
    elif local_path.is_dir():
        files = [str(local_path / name) for name in origin.files]
    elif origin.path.count("/") > 1 or origin.path.startswith((".", "/", "~")):
        raise InvalidInput(
            f"cannot read dataset {str(local_path.absolute())!r}: no such file or folder; {path_remedy(origin.path)}",
            code="dataset.not_found",
        )
    else:
        revision = f"@{origin.revision}" if origin.revision else ""
        files = [f"hf://datasets/{origin.path}{revision}/{name}" for name in origin.files]
    if not files:
        return {
            "path": str(local_path) if local_path.is_dir() else origin.path,
            "name": origin.config or None,
            "revision": origin.revision or None,
        }
    split = origin.split.partition("[")[0]
    return {"path": _format_of(files[0], origin), "data_files": {split: files}}


def _format_of(file: str, origin: DatasetSource) -> str:
    suffix = Path(file).suffix
    if suffix not in _FORMATS:
        raise InvalidInput(
            f"cannot load dataset {origin.path!r}: files with the suffix {suffix!r} are not supported; use one of "
            f"{', '.join(_FORMATS)}",
            code="dataset.unknown_format",
        )
    return _FORMATS[suffix]


def _unreachable(origin: DatasetSource) -> str:
    return (
        f"cannot load dataset {origin.path!r}: no such local folder, and the Hugging Face hub is unreachable (or "
        "HF_HUB_OFFLINE is set); download it on a machine with access to the hub "
        f"(hf download --repo-type dataset {origin.path} --local-dir FOLDER), copy FOLDER here, and set it as the path"
    )


def _is_network(problem: Exception) -> bool:
    """Returns whether an error is from an HTTP client; the library does not wrap those errors."""
    return type(problem).__module__.partition(".")[0] in {"httpx", "httpx2", "requests", "urllib3"}
