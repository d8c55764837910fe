"""Storage in a bucket of S3 or a compatible service."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, unquote

from pydantic import Field

from astraflow.contract.errors import InvalidInput, Unavailable, UnknownVersion
from astraflow.contract.ids import PolicyId
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.imports import needs_extra
from astraflow.runtime.logs import get_logger
from astraflow.weights.store.storage import storages
from astraflow.weights.store.storage.ownership import StorageOwnership

log = get_logger()

PART_BYTES = 16 * 2**20
"""Larger objects are uploaded in parts of this size, several at once."""

OWNERSHIP_OBJECT_NAME = "store.claim"

MAX_PARTS = 9000
"""Parts of one upload; S3 accepts 10,000."""

READ_AHEAD_BYTES = 8 * 2**20
"""Smallest range of an object that one request reads."""


class S3Options(Config):
    """Bucket and prefix. Credentials come from the environment, as the cloud's own tools find them
    (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, or the role of the machine)."""

    bucket: Annotated[str, SettableBy.RECIPE] = Field(min_length=1)
    """Name of the bucket."""
    prefix: Annotated[str, SettableBy.RECIPE] = ""
    """Prefix of the store's objects; one store at a time may use it."""
    region: Annotated[str | None, SettableBy.RECIPE] = None
    """Region; `AWS_REGION` when absent."""
    endpoint: Annotated[str | None, SettableBy.RECIPE] = None
    """`http(s)://HOST[:PORT]` of a service other than Amazon's; `AWS_ENDPOINT_URL` when absent."""
    take_over: Annotated[bool, SettableBy.RECIPE] = False
    """Take the prefix over from another store, after its machine was lost."""
    retry_s: float = Field(default=10.0, ge=0)
    """Time for retries of a failed request before the store reports the bucket as unreachable."""


@storages.register("s3", options=S3Options)
class S3Storage:
    """Storage in a bucket with a common name prefix for each policy.

    An object exists only after its upload is complete.
    """

    is_durable = True

    def __init__(self, options: S3Options, directory: Path) -> None:
        self._library = _library()
        self._location = f"s3://{options.bucket}/{options.prefix}"
        settings = {"region": options.region, "endpoint": options.endpoint}
        try:
            self._store = self._library.store.S3Store(
                options.bucket,
                prefix=options.prefix or None,
                client_options={"allow_http": bool(options.endpoint and options.endpoint.startswith("http://"))},
                retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=options.retry_s)},
                **{name: value for name, value in settings.items() if value is not None},
            )
        except (self._library.exceptions.BaseError, ValueError) as problem:
            raise InvalidInput(
                f"cannot use {self._location}: {_first_line(problem)}; correct the options of the storage",
                code="storage.invalid_bucket",
            ) from problem
        self._ownership = StorageOwnership(
            S3OwnershipObject(self._library, self._store, self._location),
            location=self._location,
            directory=directory,
            may_take_over=options.take_over,
        )

    def acquire(self) -> None:
        """Takes ownership of the prefix. Raises: InvalidInput, Unavailable."""
        self._ownership.acquire()

    def policies(self) -> Sequence[PolicyId]:
        with _translate_errors(self._location):
            prefixes = self._library.list_with_delimiter(self._store)["common_prefixes"]
        return sorted(PolicyId(unquote(prefix)) for prefix in prefixes)

    def folder(self, policy: PolicyId) -> "S3Folder":
        return S3Folder(self._library, self._store, self._location, quote(policy, safe=""), claim=self._ownership)

    def close(self) -> None:
        """Releases the prefix for the next store; all objects stay."""
        try:
            self._ownership.release()
        except Unavailable as problem:
            log.warning("ownership_not_released", location=self._location, problem=str(problem))


class S3Folder:
    """`Folder` in a bucket. Changes raise Conflict once another store has taken the prefix over."""

    def __init__(self, library: Any, store: Any, location: str, folder: str, *, claim: StorageOwnership) -> None:
        self._library = library
        self._store = store
        self._location = location
        self._folder = folder
        self._ownership = claim

    def sizes(self) -> Mapping[str, int]:
        """Returns every object name with its size in bytes."""
        with _translate_errors(self._location):
            objects = self._library.list(self._store, prefix=self._folder).collect()
        return {entry["path"].rpartition("/")[2]: entry["size"] for entry in objects}

    def open(self, name: str) -> "S3FileReader":
        """Opens an object. Raises: UnknownVersion."""
        return S3FileReader(self._library, self._store, self._location, self._path(name))

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Uploads in parts; the object exists after the last one. Raises: Unavailable."""
        self._ownership.check()
        size_bytes = max(PART_BYTES, -(-len(data) // MAX_PARTS))
        with _translate_errors(self._location):
            self._library.put(self._store, self._path(name), data, chunk_size=size_bytes)

    def rename(self, name: str, new_name: str) -> None:
        """Copies the object within the bucket, then removes the original."""
        self._ownership.check()
        with _translate_errors(self._location):
            self._library.rename(self._store, self._path(name), self._path(new_name))

    def remove(self, names: Iterable[str]) -> None:
        """Removes the objects with one request each, in order."""
        self._ownership.check()
        with _translate_errors(self._location):
            for name in names:
                self._library.delete(self._store, self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"


class S3OwnershipObject:
    """Object that names the owner of a prefix."""

    def __init__(self, library: Any, store: Any, location: str) -> None:
        self._library = library
        self._store = store
        self._location = location

    def read(self) -> bytes | None:
        """Returns the content; None when the object does not exist."""
        try:
            with _translate_errors(self._location):
                return bytes(self._library.get(self._store, OWNERSHIP_OBJECT_NAME).bytes())
        except UnknownVersion:
            return None

    def write(self, data: bytes) -> None:
        """Creates or replaces the object."""
        with _translate_errors(self._location):
            self._library.put(self._store, OWNERSHIP_OBJECT_NAME, data)

    def remove(self) -> None:
        with _translate_errors(self._location):
            self._library.delete(self._store, OWNERSHIP_OBJECT_NAME)


class S3FileReader:
    """Object with read-ahead: sequential reads cost one request for each `READ_AHEAD_BYTES`."""

    def __init__(self, library: Any, store: Any, location: str, path: str) -> None:
        self._library = library
        self._store = store
        self._location = location
        self._path = path
        with _translate_errors(location):
            self._size_bytes: int = library.head(store, path)["size"]
        self._read_ahead = memoryview(b"")
        self._read_ahead_offset = 0

    def read(self, offset: int, size_bytes: int) -> memoryview:
        """Returns bytes from `offset` on, fewer only at the end. Raises: UnknownVersion when the object was removed."""
        end = min(offset + size_bytes, self._size_bytes)
        if end <= offset:
            return memoryview(b"")
        if not self._read_ahead_offset <= offset <= end <= self._read_ahead_offset + len(self._read_ahead):
            ahead_to = min(max(end, offset + READ_AHEAD_BYTES), self._size_bytes)
            with _translate_errors(self._location):
                data = self._library.get_range(self._store, self._path, start=offset, end=ahead_to)
            self._read_ahead, self._read_ahead_offset = memoryview(data), offset
        return self._read_ahead[offset - self._read_ahead_offset : end - self._read_ahead_offset]

    def close(self) -> None:
        """Releases the read-ahead data."""
        self._read_ahead = memoryview(b"")


@contextmanager
def _translate_errors(location: str) -> Iterator[None]:
    """Converts errors of the library to AstraFlow errors."""
    errors = import_module("obstore.exceptions")
    try:
        yield
    except (errors.BaseError, OSError) as problem:
        if "NoSuchBucket" in str(problem):
            raise InvalidInput(
                f"cannot use {location}: the bucket does not exist; create it, or name another one",
                code="storage.no_bucket",
            ) from problem
        if isinstance(problem, errors.NotFoundError | FileNotFoundError):
            raise UnknownVersion(
                f"cannot read from {location}: an object was removed; plan the transfer again",
                code="weights.file_removed",
            ) from None
        raise Unavailable(
            f"cannot reach {location}: {_first_line(problem)}; check network and credentials",
            code="storage.bucket_unreachable",
        ) from problem


def _library() -> Any:
    with needs_extra("s3", to="use a bucket"):
        library = import_module("obstore")
        import_module("obstore.store")
    return library


def _first_line(problem: BaseException) -> str:
    return str(problem).partition("\n")[0]
