"""Building blocks of the compiled loops: 64 elements processed as one LLVM vector, and bit counts of a word.

A comparison of two vectors yields a word of 64 bits; LLVM chooses the instructions. Machine code of a loop is cached by
the date of *its own* file: after a change of this file, remove `__pycache__`.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

Loop = TypeVar("Loop", bound=Callable[..., Any])


def compile_loop(function: Loop) -> Loop:
    """Compiles on the first call, for the argument types; the code runs without the interpreter lock."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no writable cache folder for machine code
        return njit(nogil=True)(function)


def _load_64(context, builder, array_type, array, at):
    """Loads 64 elements of an array from an index on, as a vector."""
    vector = ir.VectorType(context.get_value_type(array_type.dtype), 64)
    address = builder.gep(make_array(array_type)(context, builder, array).data, [at])
    return builder.load(builder.bitcast(address, vector.as_pointer()), align=1)


def _splat(builder, value, like):
    undefined = ir.Constant(like, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(ir.IntType(32), 64), [0] * 64))


@intrinsic
def mask_not_equal(typing, old, new, at):
    """Compares 64 elements; returns a word with a set bit for each element that differs."""

    def build(context, builder, signature, values):
        left, right = (
            _load_64(context, builder, kind, value, values[2])
            for kind, value in zip(signature.args[:2], values[:2], strict=True)
        )
        return builder.bitcast(builder.icmp_unsigned("!=", left, right), ir.IntType(64))

    return types.uint64(old, new, types.intp), build


@intrinsic
def mask_less_than(typing, bits, at, mask, limit):
    """Compares 64 elements; returns a word with a set bit for each element that is less than `limit` under `mask`."""

    def build(context, builder, signature, values):
        vector = _load_64(context, builder, signature.args[0], values[0], values[1])
        masked = builder.and_(vector, _splat(builder, values[2], vector.type))
        is_less = builder.icmp_unsigned("<", masked, _splat(builder, values[3], vector.type))
        return builder.bitcast(is_less, ir.IntType(64))

    return types.uint64(bits, types.intp, bits.dtype, bits.dtype), build


@intrinsic
def popcount(typing, word):
    """Returns the number of set bits."""
    return types.int64(types.uint64), lambda context, builder, signature, values: builder.ctpop(values[0])


@intrinsic
def bit_length(typing, word):
    """Returns the number of binary digits of a number."""

    def build(context, builder, signature, values):
        zeros = builder.ctlz(values[0], ir.Constant(ir.IntType(1), 0))
        return builder.sub(ir.Constant(ir.IntType(64), 64), zeros)

    return types.int64(types.uint64), build


@intrinsic
def trailing_zeros(typing, word):
    """Returns the index of the lowest set bit; undefined for 0."""

    def build(context, builder, signature, values):
        return builder.cttz(values[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), build
