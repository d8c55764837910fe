"""Folder with everything that a recipe downloads: models and data sets below one data root, listed with their hashes.

`astraflow fetch RECIPE --to DIR` fills it on a machine with a network; a run with `data_root = DIR` reads only it.

    DIR/astraflow-manifest.json
    DIR/models/OWNER/NAME/...        DIR/datasets/OWNER/NAME/...
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from astraflow.contract.errors import CorruptData, InvalidInput

MANIFEST = "astraflow-manifest.json"
"""File of a data root that lists its sources; a source is added when all of its files are complete."""

CONFIG = "config:"
"""Prefix of a part that is a configuration."""

WHOLE = ""
"""Part that stands for the whole repository."""

_BLOCK_BYTES = 1 << 20


class SourceKind(Enum):
    """Origin of a download."""

    MODEL = "model"
    """Model repository of the Hugging Face hub."""
    DATASET = "dataset"
    """Data set repository of the Hugging Face hub."""
    PACKAGE = "package"
    """Model in a package of pip's index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSource:
    """Download that a recipe names."""

    kind: SourceKind
    name: str
    """Repository as `owner/name`, or the name of a packaged model."""
    revision: str = ""
    """Commit, branch or tag that the recipe asks for; empty: the newest."""
    parts: tuple[str, ...] = (WHOLE,)
    """Files, or configurations of its card as `config:NAME`, that are read."""

    @property
    def folder(self) -> str:
        """Folder of the source below the data root."""
        parent = "datasets" if self.kind is SourceKind.DATASET else "models"
        return f"{parent}/{self.name}" + (f"@{self.revision}" if self.revision else "")

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name!r}" + (f" at {self.revision!r}" if self.revision else "")


@runtime_checkable
class RemoteOptions(Protocol):
    """Options of a plugin that reads a download."""

    location_option: ClassVar[str]
    """Option that names a local folder with the same content."""

    def remote_source(self) -> RemoteSource | None:
        """Returns the download; None when the options name something on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedFile:
    """File of a fetched source."""

    path: str
    """Path below the data root."""
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedSource:
    """Complete source in a data root."""

    kind: SourceKind
    name: str
    revision: str
    """Requested revision; empty: the newest."""
    commit: str
    """Commit that was fetched, or release of the package."""
    license: str
    """Licence as its card or package states it; empty without a statement."""
    parts: tuple[str, ...]
    files: tuple[FetchedFile, ...]

    def covers(self, source: RemoteSource) -> bool:
        """Returns whether this is the source, with all parts that are read."""
        has_parts = WHOLE in self.parts or set(source.parts) <= set(self.parts)
        return (self.kind, self.name, self.revision) == (source.kind, source.name, source.revision) and has_parts


class DataRoot:
    """Folder of fetched sources, with its manifest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().absolute()

    def sources(self) -> list[FetchedSource]:
        """Returns the complete sources. Raises: CorruptData for an unreadable manifest."""
        file = self.folder / MANIFEST
        try:
            return [_source(values) for values in json.loads(file.read_text())["sources"]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            raise CorruptData(
                f"cannot read {str(file)!r}: {problem!r}; remove the file and fetch again: complete files are kept",
                code="fetch.damaged_manifest",
            ) from problem

    def write(self, sources: Iterable[FetchedSource]) -> None:
        """Replaces the manifest."""
        values = [asdict(source) | {"kind": source.kind.value} for source in sources]
        partial = self.folder / f".{MANIFEST}.partial"
        partial.write_text(json.dumps({"sources": values}, indent=2) + "\n")
        partial.replace(self.folder / MANIFEST)

    def find(self, source: RemoteSource) -> FetchedSource | None:
        """Returns the complete source; None when it is missing or lacks a part. Raises: CorruptData."""
        return next((fetched for fetched in self.sources() if fetched.covers(source)), None)

    def changes(self, fetched: FetchedSource, *, reads_content: bool) -> list[str]:
        """Returns a text for each file that is missing, torn, or (with `reads_content`) has another content."""
        return [change for file in fetched.files if (change := self._change(file, reads_content=reads_content))]

    def folder_of(self, source: RemoteSource, *, recipe: str) -> Path:
        """Returns the folder of a complete source, for reading by a recipe. Compares only the sizes of its files.

        Raises: InvalidInput for a source that is missing or damaged.
        """
        fetched = self.find(source)
        problems = ["it was not fetched"] if fetched is None else self.changes(fetched, reads_content=False)
        if problems:
            raise InvalidInput(
                f"cannot read the {source} from the data root {str(self.folder)!r}: {'; '.join(problems)}; run "
                f"`astraflow fetch {recipe} --to {self.folder}` on a machine with a network, and copy the folder here",
                code="recipe.data_root_incomplete",
            )
        return self.folder / source.folder

    def _change(self, file: FetchedFile, *, reads_content: bool) -> str:
        path = self.folder / file.path
        if not path.is_file():
            return f"{file.path}: missing"
        size_bytes = path.stat().st_size
        if size_bytes != file.size_bytes:
            return f"{file.path}: {size_bytes} of {file.size_bytes} bytes"
        return f"{file.path}: other content" if reads_content and sha256_of(path) != file.sha256 else ""


def is_hub_name(path: str) -> bool:
    """Returns whether a location is a repository of the hub, and not a path that exists here.

    >>> is_hub_name("Qwen/Qwen3-1.7B"), is_hub_name("./models/qwen"), is_hub_name("/models/qwen"), is_hub_name("qwen")
    (True, False, False, False)
    """
    has_form = path.count("/") == 1 and not path.startswith((".", "/", "~")) and not path.endswith("/")
    return has_form and not Path(path).exists()


def parts_of(files: Sequence[str], config: str) -> tuple[str, ...]:
    """Returns the parts of a repository that a data set reads: files, or one configuration of its card, or all.

    >>> parts_of(["a.jsonl"], ""), parts_of([], "en"), parts_of([], "")
    (('a.jsonl',), ('config:en',), ('',))
    """
    return tuple(files) or (f"{CONFIG}{config}" if config else WHOLE,)


def sha256_of(file: Path) -> str:
    """Returns the hash of a file, in hex."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _source(values: dict[str, object]) -> FetchedSource:
    files = values["files"]
    parts = values["parts"]
    if not isinstance(files, list) or not isinstance(parts, list):
        raise TypeError("files and parts are lists")
    texts = {name: str(values[name]) for name in ("name", "revision", "commit", "license")}
    return FetchedSource(
        kind=SourceKind(values["kind"]),
        parts=tuple(map(str, parts)),
        files=tuple(FetchedFile(**file) for file in files),
        **texts,
    )
