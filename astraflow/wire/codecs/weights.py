"""Codec of the weight plane's contract types."""

import xxhash

from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.weights import Chunk, Manifest, Probe, SharedFile, Transfer, TransferPlan
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.codecs.frames import varint
from astraflow.wire.pb import weight_plane_pb2 as pb

HASH_BYTES = 32
SIGNATURE_BYTES = 64


def encode_manifest(manifest: Manifest) -> pb.Manifest:
    """Manifest -> message."""
    return to_message(manifest, pb.Manifest)


def decode_manifest(message: pb.Manifest) -> Manifest:
    """Message -> manifest. Raises: InvalidInput for unknown dtypes, hashes or a signature of the wrong length."""
    if len(message.signature) not in {0, SIGNATURE_BYTES}:
        raise InvalidInput(
            f"cannot decode manifest of {message.policy!r}: its signature has {len(message.signature)} bytes, "
            f"not {SIGNATURE_BYTES}; send an Ed25519 signature or none",
            code="manifest.invalid",
        )
    manifest = from_message(message, Manifest)
    _check_hash(manifest.root_hash, "root hash")
    for tensor in manifest.tensors:
        _check_hash(tensor.hash, f"hash of tensor {tensor.name}")
    if manifest.probe is not None:
        _check_probe(manifest.probe)
    return manifest


def encode_transfer(transfer: Transfer) -> pb.Transfer:
    """Transfer -> message."""
    return to_message(transfer, pb.Transfer)


def decode_transfer(message: pb.Transfer) -> Transfer:
    """Message -> transfer. Raises: InvalidInput."""
    _check_hash(message.hash, "transfer hash")
    return from_message(message, Transfer)


def encode_plan(plan: TransferPlan) -> pb.PlanReply:
    """Transfer plan -> message."""
    return to_message(plan, pb.PlanReply)


def decode_plan(message: pb.PlanReply) -> TransferPlan:
    """Message -> transfer plan. Raises: InvalidInput."""
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


def _check_probe(probe: Probe) -> None:
    lengths, scored_from = probe.lengths, probe.scored_from
    scored = sum(length - first for length, first in zip(lengths, scored_from, strict=False))
    fits = len(probe.tokens) == 4 * sum(lengths) and len(probe.logprobs) == 4 * scored
    if len(lengths) != len(scored_from) or not fits or any(a > b for a, b in zip(scored_from, lengths, strict=True)):
        raise InvalidInput(
            "cannot decode probe: its lengths do not match its bytes; send 4 bytes per token and per scored token",
            code="manifest.invalid",
        )


def _check_hash(value: bytes, what: str) -> None:
    if len(value) != HASH_BYTES:
        raise InvalidInput(
            f"cannot decode {what}: it has {len(value)} bytes, not {HASH_BYTES}; send a BLAKE3 hash",
            code="manifest.invalid",
        )
