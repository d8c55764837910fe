"""Invalid hashes, checksums and kinds."""

from dataclasses import replace

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Chunk, Dtype, Manifest, Probe, TensorSpec, Transfer, TransferKind
from astraflow.wire.codecs.weights import (
    decode_chunk,
    decode_manifest,
    decode_transfer,
    encode_chunk,
    encode_manifest,
    encode_transfer,
    frame_chunk,
)
from astraflow.wire.pb import weight_plane_pb2 as pb
from tests.errors import raises_code

HASH = bytes(range(32))
MANIFEST = Manifest(
    policy=PolicyId("solver"),
    version=Version(3),
    tensors=(TensorSpec(name="w", dtype=Dtype.BFLOAT16, shape=(2, 3), offset=0, hash=HASH),),
    root_hash=HASH,
    probe=Probe(tokens=b"\0" * 12, lengths=(1, 2), scored_from=(0, 1), logprobs=b"\0" * 8),
)
FULL = Transfer(
    kind=TransferKind.FULL, policy=PolicyId("solver"), target=Version(3), base=None, size_bytes=12, hash=HASH
)


def test_a_flipped_bit_in_a_chunk_is_detected() -> None:
    message = encode_chunk(Chunk(offset=64, data=b"weights", checksum=xxhash.xxh3_64_intdigest(b"weights")))
    message.data = b"weightz"
    with raises_code(CorruptData, "chunk.checksum_mismatch"):
        decode_chunk(message)


@given(offset=st.integers(0, 2**63 - 1), data=st.binary(max_size=300))
def test_a_framed_chunk_equals_the_protobuf_message(offset: int, data: bytes) -> None:
    chunk = Chunk(offset=offset, data=memoryview(data), checksum=xxhash.xxh3_64_intdigest(data))

    message = pb.Chunk.FromString(frame_chunk(chunk))

    assert message == encode_chunk(chunk)
    assert decode_chunk(message) == replace(chunk, data=data)


def test_a_chunk_of_a_view_is_sent_as_its_bytes() -> None:
    view = memoryview(b"some weights")[5:]
    message = encode_chunk(Chunk(offset=0, data=view, checksum=xxhash.xxh3_64_intdigest(view)))
    assert decode_chunk(message).data == b"weights"


def test_hashes_of_a_wrong_length_are_refused() -> None:
    with raises_code(InvalidInput, "manifest.invalid", "root hash", "31 bytes"):
        decode_manifest(encode_manifest(replace(MANIFEST, root_hash=HASH[1:])))
    with raises_code(InvalidInput, "manifest.invalid", "tensor w", "0 bytes"):
        decode_manifest(encode_manifest(replace(MANIFEST, tensors=(replace(MANIFEST.tensors[0], hash=b""),))))
    with raises_code(InvalidInput, "manifest.invalid", "transfer hash", "0 bytes"):
        decode_transfer(encode_transfer(replace(FULL, hash=b"")))


def test_unknown_kinds_are_refused() -> None:
    transfer, manifest = encode_transfer(FULL), encode_manifest(MANIFEST)
    transfer.kind = "patch"
    manifest.tensors[0].dtype = "I4"
    with raises_code(InvalidInput, "message.unknown_value", "'patch'"):
        decode_transfer(transfer)
    with raises_code(InvalidInput, "message.unknown_value", "'I4'", "F32"):
        decode_manifest(manifest)


def test_a_full_transfer_with_a_base_is_refused() -> None:
    message = encode_transfer(FULL)
    message.base = 0
    with raises_code(InvalidInput, "transfer.wrong_base"):
        decode_transfer(message)


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": b"\0" * 11},
        {"lengths": (1, 1)},
        {"scored_from": (0,)},
        {"scored_from": (2, 0)},
        {"logprobs": b"\0" * 12},
    ],
)
def test_an_inconsistent_probe_is_refused(change: dict[str, object]) -> None:
    assert MANIFEST.probe is not None
    probe = replace(MANIFEST.probe, **change)  # type: ignore[arg-type]  # broken on purpose
    with raises_code(InvalidInput, "manifest.invalid", "probe"):
        decode_manifest(encode_manifest(replace(MANIFEST, probe=probe)))
