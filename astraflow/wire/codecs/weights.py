"""Codec of the weight plane's contract types."""

import xxhash

from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import (
    Chunk,
    Dtype,
    Manifest,
    Probe,
    SharedFile,
    TensorSpec,
    Transfer,
    TransferKind,
    TransferPlan,
)
from astraflow.wire.codecs.common import sorted_map
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.codecs.frames import varint
from astraflow.wire.pb import weight_plane_pb2 as pb

HASH_BYTES = 32
SIGNATURE_BYTES = 64


def encode_manifest(manifest: Manifest) -> pb.Manifest:
    """Manifest -> message."""
    message = pb.Manifest(
        policy=manifest.policy,
        version=manifest.version,
        root_hash=manifest.root_hash,
        metadata=dict(manifest.metadata),
        signature=manifest.signature,
        tensors=[
            pb.Tensor(
                name=tensor.name,
                dtype=tensor.dtype.value,
                shape=tensor.shape,
                offset=tensor.offset,
                hash=tensor.hash,
            )
            for tensor in manifest.tensors
        ],
    )
    if manifest.probe is not None:
        probe = manifest.probe
        message.probe.CopyFrom(
            pb.Probe(tokens=probe.tokens, lengths=probe.lengths, scored_from=probe.scored_from, logprobs=probe.logprobs)
        )
    return message


def decode_manifest(message: pb.Manifest) -> Manifest:
    """Message -> manifest. Raises: InvalidInput for unknown dtypes, hashes or a signature of the wrong length."""
    _check_hash(message.root_hash, "root hash")
    if len(message.signature) not in {0, SIGNATURE_BYTES}:
        raise InvalidInput(
            f"cannot decode manifest of {message.policy!r}: its signature has {len(message.signature)} bytes, "
            f"not {SIGNATURE_BYTES}; send an Ed25519 signature or none",
            code="manifest.invalid",
        )
    return Manifest(
        policy=PolicyId(message.policy),
        version=Version(message.version),
        tensors=tuple(_decode_tensor(tensor) for tensor in message.tensors),
        root_hash=message.root_hash,
        metadata=sorted_map(message.metadata),
        probe=_decode_probe(message.probe) if message.HasField("probe") else None,
        signature=message.signature,
    )


def encode_transfer(transfer: Transfer) -> pb.Transfer:
    """Transfer -> message."""
    return pb.Transfer(
        kind=transfer.kind.value,
        policy=transfer.policy,
        target=transfer.target,
        base=transfer.base,
        size_bytes=transfer.size_bytes,
        hash=transfer.hash,
    )


def decode_transfer(message: pb.Transfer) -> Transfer:
    """Message -> transfer."""
    _check_hash(message.hash, "transfer hash")
    try:
        kind = TransferKind(message.kind)
    except ValueError:
        raise InvalidInput(
            f"cannot decode transfer: unknown kind {message.kind!r}; use full or delta", code="message.unknown_value"
        ) from None
    return Transfer(
        kind=kind,
        policy=PolicyId(message.policy),
        target=Version(message.target),
        base=Version(message.base) if message.HasField("base") else None,
        size_bytes=message.size_bytes,
        hash=message.hash,
    )


def encode_plan(plan: TransferPlan) -> pb.PlanReply:
    """Transfer plan -> message."""
    return pb.PlanReply(
        manifest=encode_manifest(plan.manifest),
        transfers=[encode_transfer(transfer) for transfer in plan.transfers],
        shared=to_message(plan.shared, pb.SharedFile) if plan.shared else None,
    )


def decode_plan(message: pb.PlanReply) -> TransferPlan:
    """Message -> transfer plan."""
    return TransferPlan(
        manifest=decode_manifest(message.manifest),
        transfers=tuple(decode_transfer(transfer) for transfer in message.transfers),
        shared=from_message(message.shared, SharedFile) if message.HasField("shared") else None,
    )


def encode_chunk(chunk: Chunk) -> pb.Chunk:
    """Chunk -> message."""
    return pb.Chunk(offset=chunk.offset, data=bytes(chunk.data), checksum=chunk.checksum)


def frame_chunk(chunk: Chunk) -> bytes:
    """Chunk -> message as bytes, the data last and copied once; any protobuf library reads it as a `Chunk`.

    08 [offset, a varint of nine bytes]   19 [checksum, 8 bytes]   12 [length, a varint of five bytes] [data]
    """
    offset, length = varint(chunk.offset, digits=9), varint(len(chunk.data), digits=5)
    return b"".join((b"\x08", offset, b"\x19", chunk.checksum.to_bytes(8, "little"), b"\x12", length, chunk.data))


def decode_chunk(message: pb.Chunk) -> Chunk:
    """Message -> chunk. Raises: CorruptData when its checksum does not match."""
    if xxhash.xxh3_64_intdigest(message.data) != message.checksum:
        raise CorruptData(
            f"cannot use the chunk at offset {message.offset}: its checksum does not match; fetch it again",
            code="chunk.checksum_mismatch",
        )
    return Chunk(offset=message.offset, data=message.data, checksum=message.checksum)


def _decode_tensor(message: pb.Tensor) -> TensorSpec:
    _check_hash(message.hash, f"hash of tensor {message.name}")
    try:
        dtype = Dtype(message.dtype)
    except ValueError:
        dtype_names = ", ".join(dtype.value for dtype in Dtype)
        raise InvalidInput(
            f"cannot decode tensor {message.name!r}: unknown dtype {message.dtype!r}; use one of {dtype_names}",
            code="message.unknown_value",
        ) from None
    return TensorSpec(
        name=message.name, dtype=dtype, shape=tuple(message.shape), offset=message.offset, hash=message.hash
    )


def _decode_probe(message: pb.Probe) -> Probe:
    lengths, scored_from = tuple(message.lengths), tuple(message.scored_from)
    scored = sum(length - first for length, first in zip(lengths, scored_from, strict=False))
    fits = len(message.tokens) == 4 * sum(lengths) and len(message.logprobs) == 4 * scored
    if len(lengths) != len(scored_from) or not fits or any(a > b for a, b in zip(scored_from, lengths, strict=True)):
        raise InvalidInput(
            "cannot decode probe: its lengths do not match its bytes; send 4 bytes per token and per scored token",
            code="manifest.invalid",
        )
    return Probe(tokens=message.tokens, lengths=lengths, scored_from=scored_from, logprobs=message.logprobs)


def _check_hash(value: bytes, what: str) -> None:
    if len(value) != HASH_BYTES:
        raise InvalidInput(
            f"cannot decode {what}: it has {len(value)} bytes, not {HASH_BYTES}; send a BLAKE3 hash",
            code="manifest.invalid",
        )
