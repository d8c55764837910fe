"""Tables of the Hugging Face `datasets` library: Arrow files, mapped into memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.contract.values import Json
from astraflow.datasets.base import check_index
from astraflow.datasets.tables.base import Wanted, as_json, fingerprint_of
from astraflow.datasets.tables.columns import chosen_columns
from astraflow.datasets.tables.extra import extra_module

_BUILDERS = frozenset({"arrow", "cache", "csv", "json", "parquet", "text"})
"""What files may be made of. The library has builders for archives too, some of which can hold pickles."""

_FORMATS = {".arrow": "arrow", ".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}

_SAMPLED = 64
"""Rows in the fingerprint, from all over the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a data set of the library comes from."""

    path: str
    """A folder that `save_to_disk` wrote, a file, a folder of files, or a name on the hub."""
    split: str = "train"
    config: str = ""
    revision: str = ""
    files: tuple[str, ...] = ()
    """Of the repository; all that make up the split when there are none."""
    cache: str = ""
    """Folder for what is fetched and converted; the library's own when empty."""


class ArrowTable:
    """Rows of one split. They stay on disk, whatever their number."""

    def __init__(self, origin: Origin, wanted: Wanted, *, fields: Sequence[str] = ()) -> None:
        found = _loaded(origin)
        self._path = origin.path
        columns = chosen_columns(found.features.arrow_schema, wanted, fields, origin.path)
        self._rows = found.select_columns(columns).with_format("arrow")
        self.size = len(found)
        if not self.size:
            raise InvalidInput(f"dataset {origin.path} is empty: its split {origin.split!r} has no rows")
        for name in wanted:
            if empty := found.data.column(name).null_count:
                raise InvalidInput(f"dataset {origin.path}: column {name!r} has {empty} rows without a value")

    @property
    def fingerprint(self) -> str:
        """Of the columns, the number of rows, their bytes and some rows from all over."""
        places = sorted({place * self.size // _SAMPLED for place in range(_SAMPLED)})
        return fingerprint_of(self._rows.column_names, self.size, self._rows.data.nbytes, *map(self.row, places))

    def row(self, index: int) -> dict[str, Json]:
        """Row number `index` of the split."""
        check_index(index, self.size)
        values = self._rows[index].to_pylist()[0]
        return {name: as_json(value, f"{self.where(index)}: column {name!r}") for name, value in values.items()}

    def where(self, index: int) -> str:
        """Data set and row."""
        return f"{self._path}, row {index}"

    def key(self, index: int) -> str:
        """The row, counted from 0."""
        return f"row:{index}"


def _loaded(origin: Origin) -> Any:
    """A `datasets.Dataset`. Raises: InvalidInput that says what would work."""
    library = extra_module("datasets")
    library.disable_progress_bars()  # a service writes logs
    here = Path(origin.path).expanduser()
    saved_as = [here / name for name in ("state.json", "dataset_dict.json")]
    try:
        if any(path.is_file() for path in saved_as):
            return _split_of(library.load_from_disk(str(here)), origin)
        return _built(library, origin, here)
    except ConnectionError as problem:
        raise InvalidInput(_unreachable(origin)) from problem
    except extra_module("huggingface_hub.errors").HfHubHTTPError as problem:
        raise InvalidInput(f"dataset {origin.path}: the hub refused it: {problem}") from problem
    except (OSError, ValueError, RuntimeError, library.exceptions.DatasetsError) as problem:
        raise InvalidInput(f"dataset {origin.path} cannot be loaded: {problem}") from problem
    except Exception as problem:
        if not _is_network(problem):
            raise
        raise InvalidInput(_unreachable(origin)) from problem


def _split_of(found: Any, origin: Origin) -> Any:
    if not isinstance(found, dict):
        return found
    if origin.split not in found:
        raise InvalidInput(f"dataset {origin.path} has no split {origin.split!r}; it has {', '.join(sorted(found))}")
    return found[origin.split]


def _built(library: Any, origin: Origin, here: Path) -> Any:
    builder = library.load_dataset_builder(cache_dir=origin.cache or None, **_arguments(origin, here))
    kind = type(builder).__module__.split(".")[2]
    if kind not in _BUILDERS:
        raise InvalidInput(
            f"dataset {origin.path} is made of {kind}, which is not read here; known: {', '.join(sorted(_BUILDERS))}"
        )
    builder.download_and_prepare()
    return builder.as_dataset(split=origin.split)


def _arguments(origin: Origin, here: Path) -> dict[str, Any]:
    """Of `load_dataset_builder`. Single files are read as the split that was asked for."""
    if here.is_file():
        files = [str(here)]
    elif here.is_dir():
        files = [str(here / name) for name in origin.files]
    elif origin.path.count("/") > 1 or origin.path.startswith((".", "/", "~")):
        raise InvalidInput(f"dataset {here.absolute()} cannot be read: there is no such file or folder")
    else:
        at = f"@{origin.revision}" if origin.revision else ""
        files = [f"hf://datasets/{origin.path}{at}/{name}" for name in origin.files]
    if not files:
        return {
            "path": str(here) if here.is_dir() else origin.path,
            "name": origin.config or None,
            "revision": origin.revision or None,
        }
    split = origin.split.partition("[")[0]
    return {"path": _format_of(files[0], origin), "data_files": {split: files}}


def _format_of(file: str, origin: Origin) -> str:
    suffix = Path(file).suffix
    if suffix not in _FORMATS:
        raise InvalidInput(
            f"dataset {origin.path}: files that end in {suffix!r} are not read; known: {', '.join(_FORMATS)}"
        )
    return _FORMATS[suffix]


def _unreachable(origin: Origin) -> str:
    return (
        f"dataset {origin.path}: there is no such folder here, and the Hugging Face hub cannot be reached (or "
        "HF_HUB_OFFLINE is set). On a machine that reaches it: "
        f"hf download --repo-type dataset {origin.path} --local-dir FOLDER; then bring FOLDER here, and give it as the "
        "path"
    )


def _is_network(problem: Exception) -> bool:
    """The library lets errors of its HTTP client through, whichever client it uses."""
    return type(problem).__module__.partition(".")[0] in {"httpx", "httpx2", "requests", "urllib3"}
