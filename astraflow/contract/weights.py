"""Weights: versions, their layout, and how they are transferred."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId, Version


class Dtype(Enum):
    """Element types, by their safetensors name. Weights are handled as bits; the type gives their width."""

    FLOAT32 = "F32"
    FLOAT16 = "F16"
    BFLOAT16 = "BF16"
    FLOAT8_E4M3 = "F8_E4M3"
    FLOAT8_E5M2 = "F8_E5M2"
    INT32 = "I32"
    """Integers that a model looks up, such as the experts of each token; 64-bit ones are published so."""

    @property
    def size_bytes(self) -> int:
        """Bytes of one element."""
        return {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I32": 4}[self.value]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One named tensor in the flat buffer of a version. `hash` is BLAKE3 (32 bytes) of its little-endian bytes."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    offset: int
    hash: bytes = b""

    @property
    def elements(self) -> int:
        """Number of elements."""
        product = 1
        for size in self.shape:
            product *= size
        return product

    @property
    def size_bytes(self) -> int:
        """Bytes in the flat buffer."""
        return self.elements * self.dtype.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Token sequences with the logprobs the trainer's own forward pass gives them under this version.

    An engine that loaded the version scores the same tokens; the largest difference shows whether the two agree.
    tokens: little-endian int32, sequences back to back; lengths: tokens of each sequence; logprobs: little-endian
    float32, `length - scored_from` for each sequence (the tokens from `scored_from` on).
    """

    tokens: bytes
    lengths: tuple[int, ...]
    scored_from: tuple[int, ...]
    logprobs: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Content of a version, independent of how it is transferred. `root_hash` covers names, types, shapes and all
    tensor hashes."""

    policy: PolicyId
    version: Version
    tensors: tuple[TensorSpec, ...]
    root_hash: bytes
    metadata: Mapping[str, str] = field(default_factory=dict)
    probe: Probe | None = None
    signature: bytes = b""
    """Ed25519 (64 bytes) by the run's key; empty when the run does not sign."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the flat buffer."""
        return max((tensor.offset + tensor.size_bytes for tensor in self.tensors), default=0)


class TransferKind(Enum):
    """Encoding in which a version is transferred."""

    FULL = "full"
    DELTA = "delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One file to fetch: the full snapshot of `target`, or the delta `base -> target`. Immutable, named by its hash."""

    kind: TransferKind
    policy: PolicyId
    target: Version
    base: Version | None
    size_bytes: int
    hash: bytes
    """BLAKE3 of the encoded file."""

    def __post_init__(self) -> None:
        if (self.kind is TransferKind.DELTA) != (self.base is not None):
            raise InvalidInput(
                f"cannot build {self.kind.value} transfer: base version is {self.base}; "
                "set one for a delta, none for a full snapshot",
                code="transfer.wrong_base",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFile:
    """A file in a host's shared memory, for processes on that host; see `astraflow.weights.shared_memory`."""

    host: str
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Contiguous range of a version's flat buffer, from the start of one tensor to the end of another: one publisher's
    share of a multipart publish."""

    offset: int
    size_bytes: int

    @property
    def end(self) -> int:
        """First byte after the part."""
        return self.offset + self.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPlan:
    """Transfers from the version of a node to the requested version, in order, with the fewest bytes in total.

    shared: the target's full bits in the shared memory of the store's host, for readers on that host.
    """

    manifest: Manifest
    transfers: tuple[Transfer, ...]
    shared: SharedFile | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes to fetch."""
        return sum(transfer.size_bytes for transfer in self.transfers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of a transfer. `checksum` is xxh3-64 of `data`; `offset` counts from the start of the encoded file."""

    offset: int
    data: bytes | memoryview
    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionNotice:
    """Announcement of a version that can be fetched."""

    policy: PolicyId
    version: Version
    root_hash: bytes
    full_bytes: int
    delta_bytes: int
    """Size of the delta from the previous version; 0 when there is none."""
    published_at: float
    """Unix seconds at the store."""
    changed_elements: int = 0
    """Elements that differ from the previous version; 0 when unknown."""
    elements: int = 0
    """Elements of the version; 0 when unknown."""
    is_durable: bool = False
    """True if the store holds it on storage that survives a reboot of the machine."""
