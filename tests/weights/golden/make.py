"""Generates the golden files of the weight format: `python -m tests.weights.golden.make`.

Each case is a base, a target and the delta between them: `NAME.base`, `NAME.target`, `NAME.delta`; `cases.json` has
the tensors and the encoding of the delta. They change only with the format: a decoder that reads earlier files must
still read these.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import shake_128
from pathlib import Path

import numpy as np
import numpy.typing as npt

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype, Manifest
from astraflow.weights.codec.delta import BLOCK_ELEMENTS, Level, encode_delta
from astraflow.weights.codec.kernels.base import Kernels
from astraflow.weights.tensors import BITS, BitArray, Buffer, SnapshotTensors, build_layout

FOLDER = Path(__file__).parent

Shapes = Mapping[str, tuple[Dtype, tuple[int, ...]]]

_LARGE: Shapes = {"layer.weight": (Dtype.BFLOAT16, (96, 64)), "norm.weight": (Dtype.BFLOAT16, (64,))}
_WIDE: Shapes = {"layer.weight": (Dtype.BFLOAT16, (160, 128))}
_MIXED: Shapes = {
    "embed": (Dtype.BFLOAT16, (40, 30)),
    "norm": (Dtype.FLOAT32, (100,)),
    "scale": (Dtype.FLOAT32, ()),
    "half": (Dtype.FLOAT16, (17, 23)),
    "empty": (Dtype.FLOAT16, (0, 23)),
    "e4m3": (Dtype.FLOAT8_E4M3, (333,)),
    "e5m2": (Dtype.FLOAT8_E5M2, (5, 5, 5)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Base, target and encoding of a golden delta. `change`: how elements move, see `_moved`."""

    name: str
    change: str
    level: Level = Level.FAST
    shapes: Shapes = field(default_factory=lambda: _LARGE)
    block_elements: int = BLOCK_ELEMENTS


CASES = (
    Case(name="fast", change="some", shapes=_WIDE),
    Case(name="dense", change="some", shapes=_WIDE, level=Level.DENSE),
    Case(name="all_types", change="some", level=Level.DENSE, shapes=_MIXED),
    Case(name="small_blocks", change="some", shapes=_MIXED, block_elements=200),
    Case(name="nearly_all", change="nearly all", level=Level.DENSE),
    Case(name="far", change="far"),
    Case(name="runs", change="runs"),
    Case(name="raw", change="anything", shapes={"tiny": (Dtype.FLOAT8_E4M3, (3000,))}),
    Case(name="nothing", change="nothing"),
)


def versions(case: Case) -> tuple[tuple[Manifest, Buffer], tuple[Manifest, Buffer]]:
    """Returns base and target."""
    base, target = {}, {}
    for name, (dtype, shape) in case.shapes.items():
        count = int(np.prod(shape, dtype=np.int64))
        old = _weights(f"{case.name} {name}", dtype, count)
        base[name] = (dtype, shape, old)
        target[name] = (dtype, shape, _moved(case.change, f"{case.name} {name} moved", old))
    return _layout(base, 1), _layout(target, 2)


def encode(case: Case, *, kernels: Kernels | None = None) -> bytes:
    """Encodes the delta with this release."""
    base, target = versions(case)
    return encode_delta(*base, *target, level=case.level, block_elements=case.block_elements, kernels=kernels).data


def main() -> None:
    """Writes all files anew."""
    for case in CASES:
        base, target = versions(case)
        for kind, data in (("base", base[1].tobytes()), ("target", target[1].tobytes()), ("delta", encode(case))):
            (FOLDER / f"{case.name}.{kind}").write_bytes(data)
    about = {case.name: _described(case) for case in CASES}
    (FOLDER / "cases.json").write_text(json.dumps(about, indent=2) + "\n")


def _described(case: Case) -> dict[str, object]:
    base, target = versions(case)
    return {
        "level": case.level.name.lower(),
        "block_elements": case.block_elements,
        "tensors": [
            {"name": spec.name, "dtype": spec.dtype.value, "shape": spec.shape, "hash": spec.hash.hex()}
            for spec in target[0].tensors
        ],
        "base_root": base[0].root_hash.hex(),
        "target_root": target[0].root_hash.hex(),
    }


def _layout(tensors: SnapshotTensors, version: int) -> tuple[Manifest, Buffer]:
    return build_layout(tensors, policy=PolicyId("golden"), version=Version(version))


def _weights(name: str, dtype: Dtype, count: int) -> BitArray:
    """Returns numbers of all magnitudes, mostly larger ones, with a few special values."""
    width = dtype.size_bytes
    random = _random(name, count)
    magnitude = (np.maximum(random & 0xFFFF, (random >> 16) & 0xFFFF) * 3 // 8).astype(np.uint64)
    bits = (magnitude << np.uint64(8 * width) >> np.uint64(16)) | ((random >> 63) << np.uint64(8 * width - 1))
    bits[: len(bits) // 50] = random[: len(bits) // 50]
    values: BitArray = (bits & np.uint64(256**width - 1)).astype(BITS[width])
    return values


def _moved(change: str, name: str, old: BitArray) -> BitArray:
    random = _random(name, len(old))
    width: int = old.dtype.itemsize
    magnitude = (old & old.dtype.type(2 ** (8 * width - 1) - 1)).astype(np.uint64)
    likely = np.uint64(2**16) >> (magnitude << np.uint64(16) >> np.uint64(8 * width + 12))
    chance, step = random & np.uint64(0xFFFF), (random >> np.uint64(32) & np.uint64(7)).astype(np.int64)
    match change:
        case "some":
            is_moved, steps = chance < likely, np.array([1, -1, 1, -1, 1, -1, 2, -5])[step]
        case "nearly all":
            is_moved, steps = chance > 3000, 300 * step + 1
        case "far":
            is_moved, steps = chance < 300, (random >> np.uint64(20)).astype(np.int64)
        case "runs":
            is_moved, steps = np.arange(len(old)) % 1000 < 100, np.ones(len(old), dtype=np.int64)
        case "anything":
            is_moved, steps = np.ones(len(old), dtype=np.bool_), (random >> np.uint64(20)).astype(np.int64)
        case _:
            return old.copy()
    moved: BitArray = np.where(is_moved, old + steps.astype(old.dtype), old).astype(old.dtype)
    return moved


def _random(name: str, count: int) -> npt.NDArray[np.uint64]:
    """Returns the same random numbers in every release of Python and numpy."""
    return np.frombuffer(shake_128(name.encode()).digest(8 * count), dtype="<u8").copy()


if __name__ == "__main__":
    main()
