"""Bits between torch and the weight plane: exact both ways, never sharing memory."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Dtype, TensorSpec
from astraflow.models import precision
from astraflow.models.precision import (
    bits_at,
    bits_of,
    compute_dtype_of,
    device_of,
    torch_dtype_of,
    use_fast_float32_products,
    values_of,
)
from tests.errors import raises_code

WIDTHS = {Dtype.BFLOAT16: np.uint16, Dtype.FLOAT16: np.uint16, Dtype.FLOAT32: np.uint32, Dtype.FLOAT8_E4M3: np.uint8}


@pytest.mark.long
@given(data=st.data(), dtype=st.sampled_from(sorted(WIDTHS, key=str)))
def test_bits_round_trip_through_float32(data: st.DataObject, dtype: Dtype) -> None:
    bits = data.draw(hnp.arrays(WIDTHS[dtype], st.integers(1, 20)))
    values = values_of(bits, dtype, into=torch.float32)

    back = bits_of(values, dtype)

    is_number = ~torch.isnan(values).numpy()  # the payload of a NaN may change
    np.testing.assert_array_equal(back[is_number], bits[is_number])


def test_bits_of_a_tensor_are_a_copy() -> None:
    tensor = torch.ones(3)

    bits = bits_of(tensor, Dtype.FLOAT32)
    tensor.zero_()

    assert bits.tolist() == [0x3F800000] * 3


def test_read_only_buffers_are_read_at_their_offset() -> None:
    buffer = np.arange(12, dtype=np.uint8)
    buffer.flags.writeable = False
    spec = TensorSpec(name="w", dtype=Dtype.BFLOAT16, shape=(2,), offset=4)

    bits = bits_at(buffer, spec)

    assert bits.tolist() == [0x0504, 0x0706]
    assert values_of(bits, spec.dtype, into=torch.float32).dtype == torch.float32


def test_every_dtype_has_a_torch_dtype() -> None:
    assert all(torch_dtype_of(dtype).itemsize == dtype.size_bytes for dtype in Dtype)


def test_the_automatic_compute_dtype_depends_on_the_device() -> None:
    assert compute_dtype_of("auto", torch.device("cpu")) is torch.float32
    assert compute_dtype_of("auto", torch.device("cuda")) is torch.bfloat16
    assert compute_dtype_of("float16", torch.device("cpu")) is torch.float16


def test_an_unknown_device_is_refused_with_the_known_ones() -> None:
    with raises_code(InvalidInput, "device.unknown", "'auto'", "'cpu'"):
        device_of("gpu")


@pytest.fixture
def default_products() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("default_products")
def test_fast_float32_products_have_float32_precision() -> None:
    use_fast_float32_products(torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)
    for rows, inner, columns in ((1, 64, 64), (7, 576, 1536), (300, 1536, 576)):
        left = torch.randn(rows, inner, generator=generator)
        right = torch.randn(columns, inner, generator=generator).T
        exact = left.double() @ right.double()
        assert float((left @ right - exact).abs().max() / exact.abs().max()) < 1e-5


@pytest.mark.usefixtures("default_products")
def test_products_keep_the_default_library_where_the_fast_ones_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_FLOAT32_ERROR", 0.0)  # as if the processor had computed in bfloat16
    use_fast_float32_products(torch.device("cpu"))
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.usefixtures("default_products")
def test_products_on_an_accelerator_are_not_changed() -> None:
    use_fast_float32_products(torch.device("cuda"))
    assert torch.get_float32_matmul_precision() == "highest"
