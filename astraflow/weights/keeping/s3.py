"""Objects in a bucket of S3, or of what speaks like it."""

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
from astraflow.runtime.config import Config
from astraflow.runtime.logs import get_logger
from astraflow.runtime.overrides import SetBy
from astraflow.weights.keeping import keeps
from astraflow.weights.keeping.claim import Claim

log = get_logger()

PART_BYTES = 16 * 2**20
"""Larger objects are sent in parts of this size, several at once."""

CLAIM_NAME = "store.claim"

MAX_PARTS = 9000
"""S3 takes 10,000."""

AHEAD_BYTES = 8 * 2**20
"""What one request for a part of an object brings at least."""


class S3Options(Config):
    """Which bucket. Credentials come from the environment, as the cloud's own tools find them (`AWS_ACCESS_KEY_ID`,
    `AWS_SECRET_ACCESS_KEY`, or the role of the machine)."""

    bucket: Annotated[str, SetBy.RECIPE] = Field(min_length=1)
    prefix: Annotated[str, SetBy.RECIPE] = ""
    """Begins the names of the store's objects; one store at a time may use it."""
    region: Annotated[str | None, SetBy.RECIPE] = None
    """`AWS_REGION` when absent."""
    endpoint: Annotated[str | None, SetBy.RECIPE] = None
    """`http(s)://HOST[:PORT]` of a service other than Amazon's; `AWS_ENDPOINT_URL` when absent."""
    take_over: bool = False
    """Whether a store may take the prefix from another one: after a machine was lost with the store on it."""
    retry_s: float = Field(default=10.0, ge=0)
    """A request that fails is tried again for this long before the store says that it cannot reach the bucket."""


@keeps.register("s3", options=S3Options)
class S3Keep:
    """A common beginning of the names for each policy. An object that is being sent does not exist yet."""

    is_durable = True

    def __init__(self, options: S3Options, directory: Path) -> None:
        self._library = _library()
        self._place = f"s3://{options.bucket}/{options.prefix}"
        given = {"region": options.region, "endpoint": options.endpoint}
        try:
            self._store = self._library.store.S3Store(
                options.bucket,
                prefix=options.prefix or None,
                client_options={"allow_http": bool(options.endpoint and options.endpoint.startswith("http://"))},
                retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=options.retry_s)},
                **{name: value for name, value in given.items() if value is not None},
            )
        except (self._library.exceptions.BaseError, ValueError) as problem:
            raise InvalidInput(f"weights cannot be kept in {self._place}: {_first_line(problem)}") from problem
        self._claim = Claim(
            S3ClaimObject(self._library, self._store, self._place),
            place=self._place,
            directory=directory,
            may_take_over=options.take_over,
        )

    def claim(self) -> None:
        """Write down whose the prefix is. Raises: InvalidInput, Unavailable."""
        self._claim.take()

    def policies(self) -> Sequence[PolicyId]:
        """Those that have objects."""
        with _reaching(self._place):
            found = self._library.list_with_delimiter(self._store)["common_prefixes"]
        return sorted(PolicyId(unquote(name)) for name in found)

    def folder(self, policy: PolicyId) -> "S3Folder":
        """A policy's objects."""
        return S3Folder(self._library, self._store, self._place, quote(policy, safe=""), claim=self._claim)

    def close(self) -> None:
        """Everything stays, for whatever store comes next."""
        try:
            self._claim.release()
        except Unavailable as problem:
            log.warning("weights_still_claimed", place=self._place, problem=str(problem))


class S3Folder:
    """A `Folder` in a bucket. What changes it raises Conflict once another store has taken the bucket over."""

    def __init__(self, library: Any, store: Any, place: str, folder: str, *, claim: Claim) -> None:
        self._library = library
        self._store = store
        self._place = place
        self._folder = folder
        self._claim = claim

    def sizes(self) -> Mapping[str, int]:
        """Every object, with its bytes."""
        with _reaching(self._place):
            objects = self._library.list(self._store, prefix=self._folder).collect()
        return {found["path"].rpartition("/")[2]: found["size"] for found in objects}

    def open(self, name: str) -> "S3Source":
        """An object. Raises: UnknownVersion."""
        return S3Source(self._library, self._store, self._place, self._path(name))

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Sent in parts, there with the last one. Raises: Unavailable."""
        self._claim.check()
        size_bytes = max(PART_BYTES, -(-len(data) // MAX_PARTS))
        with _reaching(self._place):
            self._library.put(self._store, self._path(name), data, chunk_size=size_bytes)

    def rename(self, name: str, new_name: str) -> None:
        """Copied within the bucket, then removed."""
        self._claim.check()
        with _reaching(self._place):
            self._library.rename(self._store, self._path(name), self._path(new_name))

    def remove(self, names: Iterable[str]) -> None:
        """One request each, in order."""
        self._claim.check()
        with _reaching(self._place):
            for name in names:
                self._library.delete(self._store, self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"


class S3ClaimObject:
    """The object that says whose a prefix is."""

    def __init__(self, library: Any, store: Any, place: str) -> None:
        self._library = library
        self._store = store
        self._place = place

    def read(self) -> bytes | None:
        """What is in it."""
        try:
            with _reaching(self._place):
                return bytes(self._library.get(self._store, CLAIM_NAME).bytes())
        except UnknownVersion:
            return None

    def write(self, data: bytes) -> None:
        """Make or replace it."""
        with _reaching(self._place):
            self._library.put(self._store, CLAIM_NAME, data)

    def remove(self) -> None:
        """Take it away."""
        with _reaching(self._place):
            self._library.delete(self._store, CLAIM_NAME)


class S3Source:
    """An object, read ahead: what is asked for in order costs one request for each `AHEAD_BYTES`."""

    def __init__(self, library: Any, store: Any, place: str, path: str) -> None:
        self._library = library
        self._store = store
        self._place = place
        self._path = path
        with _reaching(place):
            self._size_bytes: int = library.head(store, path)["size"]
        self._ahead = memoryview(b"")
        self._ahead_from = 0

    def read(self, offset: int, size_bytes: int) -> memoryview:
        """Bytes from `offset` on, fewer only at the end. Raises: UnknownVersion when it was removed meanwhile."""
        end = min(offset + size_bytes, self._size_bytes)
        if end <= offset:
            return memoryview(b"")
        if not self._ahead_from <= offset <= end <= self._ahead_from + len(self._ahead):
            ahead_to = min(max(end, offset + AHEAD_BYTES), self._size_bytes)
            with _reaching(self._place):
                found = self._library.get_range(self._store, self._path, start=offset, end=ahead_to)
            self._ahead, self._ahead_from = memoryview(found), offset
        return self._ahead[offset - self._ahead_from : end - self._ahead_from]

    def close(self) -> None:
        """Let go of what was read ahead."""
        self._ahead = memoryview(b"")


@contextmanager
def _reaching(place: str) -> Iterator[None]:
    """Turns what the library raises into what a caller can act on."""
    errors = import_module("obstore.exceptions")
    try:
        yield
    except (errors.BaseError, OSError) as problem:
        if "NoSuchBucket" in str(problem):
            raise InvalidInput(f"there is no bucket at {place}: make it, or name another one") from problem
        if isinstance(problem, errors.NotFoundError | FileNotFoundError):
            raise UnknownVersion(f"{place}: an object was just removed: plan the transfer again") from None
        raise Unavailable(f"{place} cannot be used: {_first_line(problem)}") from problem


def _library() -> Any:
    try:
        library = import_module("obstore")
        import_module("obstore.store")
    except ModuleNotFoundError as problem:
        raise InvalidInput(
            "weights are to be kept in a bucket, for which the package 'obstore' is not installed here: "
            "pip install 'astraflow[s3]'"
        ) from problem
    return library


def _first_line(problem: BaseException) -> str:
    return str(problem).partition("\n")[0]
