"""The compared codecs: AstraFlow's two levels, and re-implemented formats of other systems as controls."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import zstandard

from astraflow.weights.codec.delta import MAX_BANDS_BY_LEVEL, Level, apply_delta, encode_delta
from astraflow.weights.codec.kernels.base import Kernels
from astraflow.weights.codec.kernels.compiled import CompiledKernels
from astraflow.weights.codec.kernels.reference import ReferenceKernels
from astraflow.weights.tensors import BitArray, Buffer
from benchmarks.weights.updates import Pair

NUMPY, COMPILED = ReferenceKernels(), CompiledKernels()

_PIECE = 2**20
"""Elements that a control processes at a time, for equal use of the caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """encode: a pair to bytes. apply: the bytes, their pair, and the base that becomes the target."""

    encode: Callable[[Pair], bytes]
    apply: Callable[[bytes, Pair, Buffer], object]


def _level(level: Level, kernels: Kernels, *, workers: int = 1) -> Codec:
    def encode(pair: Pair) -> bytes:
        return encode_delta(
            pair.base, pair.old, pair.target, pair.new, level=level, workers=workers, kernels=kernels
        ).data

    def apply(data: bytes, pair: Pair, buffer: Buffer) -> object:
        return apply_delta(data, pair.target, buffer, workers=workers, kernels=kernels)

    return Codec(encode=encode, apply=apply)


def _encode_index_value(pair: Pair, *, index: str) -> bytes:
    parts: list[list[bytes]] = [[], []]
    for start, old, new in _pieces(pair):
        changed = np.flatnonzero(old != new)
        parts[0].append((changed + start).astype(index).tobytes())
        parts[1].append(new[changed].tobytes())
    return b"".join([*parts[0], *parts[1]])


def _apply_index_value(data: bytes, pair: Pair, buffer: Buffer, *, index: str) -> None:
    del pair
    width = np.dtype(index).itemsize
    count = len(data) // (width + 2)
    buffer.view("<u2")[np.frombuffer(data, dtype=index, count=count)] = np.frombuffer(
        data, dtype="<u2", offset=width * count
    )


def _encode_xor(pair: Pair) -> bytes:
    compress = zstandard.ZstdCompressor(level=1).compress
    return _framed([compress((old ^ new).data) for _, old, new in _pieces(pair)])


def _apply_xor(data: bytes, pair: Pair, buffer: Buffer) -> None:
    decompress = zstandard.ZstdDecompressor().decompress
    for frame, (start, old, _) in zip(_frames(data), _pieces(pair), strict=True):
        buffer.view("<u2")[start : start + len(old)] ^= np.frombuffer(decompress(frame), dtype="<u2")


def _encode_gaps(pair: Pair) -> bytes:
    """Encodes gaps in base 255 (one byte, or as many 255s as needed and one), and new values; each under zstd."""
    compress = zstandard.ZstdCompressor(level=1).compress
    frames = []
    for _, old, new in _pieces(pair):
        changed = np.flatnonzero(old != new)
        gaps = np.diff(changed, prepend=-1) - 1
        ends = np.cumsum(gaps // 255 + 1)
        coded = np.full(int(ends[-1]) if len(ends) else 0, 255, dtype=np.uint8)
        coded[ends - 1] = gaps % 255
        frames += [compress(coded.data), compress(new[changed].data)]
    return _framed(frames)


def _apply_gaps(data: bytes, pair: Pair, buffer: Buffer) -> None:
    decompress = zstandard.ZstdDecompressor().decompress
    frames = _frames(data)
    for start, old, _ in _pieces(pair):
        coded = np.frombuffer(decompress(next(frames)), dtype=np.uint8)
        totals = np.cumsum(coded, dtype=np.int64)[coded != 255]
        changed = totals + np.arange(len(totals))
        buffer.view("<u2")[start : start + len(old)][changed] = np.frombuffer(decompress(next(frames)), dtype="<u2")


def _pieces(pair: Pair) -> Iterator[tuple[int, BitArray, BitArray]]:
    old, new = pair.bits
    for start in range(0, len(old), _PIECE):
        yield start, old[start : start + _PIECE], new[start : start + _PIECE]


def _framed(frames: list[bytes]) -> bytes:
    return b"".join([len(frame).to_bytes(4, "little") + frame for frame in frames])


def _frames(data: bytes) -> Iterator[memoryview]:
    view = memoryview(data)
    while view:
        end = 4 + int.from_bytes(view[:4], "little")
        yield view[4:end]
        view = view[end:]


def _index_value(index: str) -> Codec:
    return Codec(
        encode=partial(_encode_index_value, index=index),
        apply=partial(_apply_index_value, index=index),
    )


CODECS: Mapping[str, Codec] = {
    "index64 + value": _index_value("<i8"),
    "index + value": _index_value("<u4"),
    "xor + zstd": Codec(encode=_encode_xor, apply=_apply_xor),
    "gaps + values + zstd": Codec(encode=_encode_gaps, apply=_apply_gaps),
    "fast, numpy": _level(Level.FAST, NUMPY),
    "dense, numpy": _level(Level.DENSE, NUMPY),
    "fast": _level(Level.FAST, COMPILED),
    "dense": _level(Level.DENSE, COMPILED),
}
"""Codecs with one thread each."""


def levels(*, workers: int) -> Mapping[str, Codec]:
    """Returns AstraFlow's own codecs, on this many threads."""
    return {
        f"{level.name.lower()}, {name}, threads: {workers}": _level(level, kernels, workers=workers)
        for level in MAX_BANDS_BY_LEVEL
        for name, kernels in (("numpy", NUMPY), ("compiled", COMPILED))
    }
