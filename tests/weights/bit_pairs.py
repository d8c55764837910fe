"""Elements before and after a step, of every kind that a codec can meet."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from astraflow.weights.tensors import BITS, BitArray


@dataclass(frozen=True, slots=True, kw_only=True)
class BitPair:
    """Old and new bits of the same width and length."""

    old: BitArray
    new: BitArray


def bit_pairs(*, most: int = 5000) -> st.SearchStrategy[BitPair]:
    """Generates any width, length up to `most`, values, share of changed elements, positions and size of steps."""
    return st.builds(
        _pair,
        seed=st.integers(0, 2**32),
        width=st.sampled_from([1, 2, 4]),
        elements=st.integers(1, most),
        values=st.sampled_from(["any", "weights", "one", "special"]),
        density=st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.002, 0.01, 0.1, 0.5, 1.0])),
        where=st.sampled_from(["anywhere", "run", "alternating", "small", "ends"]),
        steps=st.sampled_from(["one", "few", "any", "largest", "special"]),
    )


def _pair(*, seed: int, width: int, elements: int, values: str, density: float, where: str, steps: str) -> BitPair:
    rng = np.random.default_rng(seed)
    old = _values(rng, values, width, elements)
    is_changed = _places(rng, where, old, density)
    new = np.where(is_changed, _stepped(rng, steps, old), old).astype(old.dtype)
    return BitPair(old=old, new=new)


def _values(rng: np.random.Generator, kind: str, width: int, elements: int) -> BitArray:
    anything: BitArray = rng.integers(0, 256**width, elements, dtype=BITS[width])
    match kind:
        case "weights":
            as_float32 = rng.normal(0, 0.02, elements).astype(np.float32).view("<u4")
            return (as_float32 >> np.uint32(32 - 8 * width)).astype(BITS[width])
        case "one":
            return np.full(elements, anything[0], dtype=BITS[width])
        case "special":
            return rng.choice(_special(width), elements)
    return anything


def _places(rng: np.random.Generator, where: str, old: BitArray, density: float) -> npt.NDArray[np.bool_]:
    index = np.arange(len(old))
    is_changed: npt.NDArray[np.bool_] = rng.random(len(old)) < density
    match where:
        case "run":
            is_changed = (index + int(rng.integers(len(old)))) % len(old) < density * len(old)
        case "alternating":
            is_changed = index % max(1, round(1 / max(density, 1e-3))) == 0
        case "small":
            is_changed = (old & old.dtype.type(2 ** (8 * old.itemsize - 1) - 1)) < density * 2 ** (8 * old.itemsize - 1)
        case "ends":
            is_changed = (index == 0) | (index == len(old) - 1)
    return is_changed


def _stepped(rng: np.random.Generator, kind: str, old: BitArray) -> BitArray:
    width: int = old.dtype.itemsize
    match kind:
        case "one":
            return old + old.dtype.type(1)
        case "few":
            return old + rng.choice([1, 2, -1, -3], size=len(old)).astype(np.int64).astype(old.dtype)
        case "largest":
            return old ^ old.dtype.type(2 ** (8 * width - 1))
        case "special":
            return rng.choice(_special(width), len(old))
    return rng.integers(0, 256**width, len(old), dtype=old.dtype)


def _special(width: int) -> BitArray:
    """Returns zeros, subnormals, the largest numbers, infinities and NaNs with payloads, of a type of that width."""
    half = 2 ** (8 * width - 1)
    exponent = {1: 0x7C, 2: 0x7F80, 4: 0x7F800000}[width]
    positive = [0, 1, exponent - 1, exponent, exponent + 1, half - 1, half // 2]
    return np.array([*positive, *(half + bits for bits in positive)], dtype=BITS[width])
