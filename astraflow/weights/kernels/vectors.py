"""What the compiled loops are made of: 64 elements looked at as one vector of LLVM's, and bits of a word counted.

A comparison of two vectors gives a word of 64 bits; how is LLVM's affair, whatever the processor has for it. Machine
code of loops is kept by the date of *their* file: whoever changes this one removes `__pycache__`.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

Loop = TypeVar("Loop", bound=Callable[..., Any])


def loop(function: Loop) -> Loop:
    """Compiled when it is first called, for the types it is called with; runs without the interpreter's lock."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # there is no place to keep machine code in
        return njit(nogil=True)(function)


def _sixty_four(context, builder, array_type, array, at):
    """64 elements of an array from an index on, as a vector."""
    vector = ir.VectorType(context.get_value_type(array_type.dtype), 64)
    address = builder.gep(make_array(array_type)(context, builder, array).data, [at])
    return builder.load(builder.bitcast(address, vector.as_pointer()), align=1)


def _splat(builder, value, like):
    nothing = ir.Constant(like, ir.Undefined)
    first = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(ir.IntType(32), 64), [0] * 64))


@intrinsic
def unequal(typing, old, new, at):
    """Bits of those of 64 elements that differ."""

    def build(context, builder, signature, values):
        left, right = (
            _sixty_four(context, builder, kind, value, values[2])
            for kind, value in zip(signature.args[:2], values[:2], strict=True)
        )
        return builder.bitcast(builder.icmp_unsigned("!=", left, right), ir.IntType(64))

    return types.uint64(old, new, types.intp), build


@intrinsic
def below(typing, bits, at, mask, limit):
    """Bits of those of 64 elements that are less than `limit` where `mask` lets one see them."""

    def build(context, builder, signature, values):
        seen = _sixty_four(context, builder, signature.args[0], values[0], values[1])
        masked = builder.and_(seen, _splat(builder, values[2], seen.type))
        found = builder.icmp_unsigned("<", masked, _splat(builder, values[3], seen.type))
        return builder.bitcast(found, ir.IntType(64))

    return types.uint64(bits, types.intp, bits.dtype, bits.dtype), build


@intrinsic
def ones(typing, word):
    """How many bits are set."""
    return types.int64(types.uint64), lambda context, builder, signature, values: builder.ctpop(values[0])


@intrinsic
def digits(typing, word):
    """Binary digits of a number."""

    def build(context, builder, signature, values):
        zeros = builder.ctlz(values[0], ir.Constant(ir.IntType(1), 0))
        return builder.sub(ir.Constant(ir.IntType(64), 64), zeros)

    return types.int64(types.uint64), build


@intrinsic
def lowest(typing, word):
    """Which is the lowest bit that is set, of those that have one."""

    def build(context, builder, signature, values):
        return builder.cttz(values[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), build
