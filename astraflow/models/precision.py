"""Devices, element types and bit patterns: conversion between torch's names and the weight plane's names."""

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Dtype, TensorSpec

ComputeDtype: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]
"""Element type of matrix products. `auto`: float32 on a CPU, bfloat16 on an accelerator."""

WeightsDtype: TypeAlias = Literal["bfloat16", "float16", "float32"]
"""Element type that weights are rounded to, published in and served from."""

_FLOAT32_ERROR = 1e-5
"""Error of a product of matrices of 256 rows, as a share of its largest element, that float32 stays below by far and
bfloat16 does not. They are 1e-6 and 3e-3."""

ElementBits: TypeAlias = npt.NDArray[np.unsignedinteger]

_TORCH = {
    Dtype.FLOAT32: torch.float32,
    Dtype.FLOAT16: torch.float16,
    Dtype.BFLOAT16: torch.bfloat16,
    Dtype.FLOAT8_E4M3: torch.float8_e4m3fn,
    Dtype.FLOAT8_E5M2: torch.float8_e5m2,
    Dtype.INT32: torch.int32,
}
_UNSIGNED = {1: (torch.uint8, np.uint8), 2: (torch.uint16, np.uint16), 4: (torch.uint32, np.uint32)}


def device_of(name: str) -> torch.device:
    """Returns the device called `name`; `auto` is the first GPU if there is one. Raises: InvalidInput."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as problem:
        raise InvalidInput(
            f"cannot use device {name!r}: unknown name; use 'auto', 'cpu', 'cuda' or 'cuda:0'", code="device.unknown"
        ) from problem
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidInput(f"cannot use device {name!r}: torch finds no GPU; use 'auto' or 'cpu'", code="device.no_gpu")
    return device


def compute_dtype_of(choice: ComputeDtype, device: torch.device) -> torch.dtype:
    """Returns the element type to compute in on `device`.

    >>> compute_dtype_of("auto", torch.device("cpu"))
    torch.float32
    """
    if choice == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[choice]


def use_fast_float32_products(device: torch.device) -> None:
    """Lets torch compute float32 matrix products of a process that computes on the CPU by oneDNN, where they are as
    exact as those of its default library: twice as fast on AMD's processors with AVX-512. The setting permits bfloat16
    products too, which oneDNN computes where the processor has matrix units (AMX); there it is taken back."""
    if device.type != "cpu":
        return
    torch.set_float32_matmul_precision("medium")
    left, right = torch.randn(2, 256, 256, generator=torch.Generator().manual_seed(0))
    exact = left.double() @ right.double()
    if float((left @ right - exact).abs().max() / exact.abs().max()) > _FLOAT32_ERROR:
        torch.set_float32_matmul_precision("highest")


def weights_dtype_of(choice: WeightsDtype) -> Dtype:
    """Returns the weight plane's element type for a published type."""
    return {"bfloat16": Dtype.BFLOAT16, "float16": Dtype.FLOAT16, "float32": Dtype.FLOAT32}[choice]


def torch_dtype_of(dtype: Dtype) -> torch.dtype:
    """Returns torch's element type for an element type of the weight plane."""
    return _TORCH[dtype]


def dtype_of(torch_dtype: torch.dtype) -> Dtype:
    """Returns the weight plane's name of torch's element type."""
    return next(dtype for dtype, own in _TORCH.items() if own is torch_dtype)


def bits_of(tensor: torch.Tensor, dtype: Dtype) -> ElementBits:
    """Returns a flat host copy of a tensor's bits in `dtype`; later changes of the tensor do not affect it.

    >>> [hex(bits) for bits in bits_of(torch.tensor([1.0, -2.0]), Dtype.BFLOAT16)]
    ['0x3f80', '0xc000']
    """
    unsigned, _ = _UNSIGNED[dtype.size_bytes]
    host = tensor.detach().to(device="cpu", dtype=torch_dtype_of(dtype), copy=True).contiguous()
    bits: ElementBits = host.flatten().view(unsigned).numpy()
    return bits


def bits_at(buffer: npt.NDArray[np.uint8], spec: TensorSpec) -> ElementBits:
    """Returns one tensor's elements in the flat buffer of a version, as unsigned integers, without a copy."""
    _, unsigned = _UNSIGNED[spec.dtype.size_bytes]
    return buffer[spec.offset : spec.offset + spec.size_bytes].view(unsigned)


def values_of(bits: ElementBits, dtype: Dtype, *, into: torch.dtype) -> torch.Tensor:
    """Returns a new host tensor `[n]` with the values of the bit patterns `bits`, upcast (exactly) to `into`.

    >>> values_of(np.array([0x3F80], np.uint16), Dtype.BFLOAT16, into=torch.float32)
    tensor([1.])
    """
    # Copied first: torch rejects the read-only memory of a verified buffer.
    return torch.from_numpy(bits.copy()).view(torch_dtype_of(dtype)).to(into)
