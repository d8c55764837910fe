"""Linear layers whose matrix products are computed in float8, forward and backward.

Weights, activations and gradients stay in the model's element type. For a product they are rounded to e4m3, gradients
to e5m2, each with one scale that makes its largest element the largest float8 number. Scales follow from the tensor at
hand, so there is no state.
Source: Micikevicius et al., "FP8 Formats for Deep Learning", arXiv:2209.05433.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from astraflow.contract.errors import InvalidInput

_ALIGNMENT = 16
"""Elements of which GPUs need a multiple in the rows and columns of a product."""
_FIRST_CAPABILITY = (8, 9)
"""Compute capability of the first GPUs with float8 products."""
_ADAPTERS = "lora_"
"""Beginning of the names of an adapter's layers, whose products are small."""


def check_float8(device: torch.device) -> None:
    """Checks that a device has float8 matrix products. Raises: InvalidInput."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _FIRST_CAPABILITY:
        raise InvalidInput(
            f"cannot compute in float8 on {str(device)!r}: it has no float8 matrix products; use a GPU of compute "
            "capability 8.9 or newer (such as L4, H100, H200), or set float8 = false",
            code="trainer.float8_without_gpu",
        )


def compute_in_float8(blocks: Iterable[nn.Module]) -> int:
    """Makes the linear layers of these blocks compute in float8; returns their number.

    Left out: layers whose sizes are no multiples of 16, adapters, and routers of experts, which are other classes, as
    are joined experts.
    """
    count = 0
    for block in blocks:
        for name, module in block.named_modules():
            is_aligned = type(module) is nn.Linear and not any(size % _ALIGNMENT for size in module.weight.shape)
            if is_aligned and _ADAPTERS not in name:
                module.__class__ = Float8Linear  # keeps names, weights and hooks
                count += 1
    return count


class Float8Linear(nn.Linear):
    """Linear layer that computes in float8."""

    def forward(self, values: Tensor) -> Tensor:
        """Returns `[..., out]` of `[..., in]`."""
        flat = values.reshape(-1, values.shape[-1])
        output: Tensor = _Product.apply(flat, self.weight)  # type: ignore[no-untyped-call]
        if (bias := self._parameters["bias"]) is not None:
            output = output + bias
        return output.view(*values.shape[:-1], -1)


class _Product(torch.autograd.Function):
    """`values @ weight.T`, for `[tokens, in]` and `[out, in]`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(values, weight)
        return _product(_rounded(values, torch.float8_e4m3fn), _rounded(weight, torch.float8_e4m3fn), values.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        values, weight = ctx.saved_tensors
        grad = grads[0].contiguous()
        rounded = _rounded(grad, torch.float8_e5m2)
        to_values = to_weight = None
        if ctx.needs_input_grad[0]:
            to_values = _product(rounded, _rounded(weight.t(), torch.float8_e4m3fn), grad.dtype)
        if ctx.needs_input_grad[1]:
            rows = (0, 0, 0, -len(grad) % _ALIGNMENT)  # the sum is over tokens
            transposed = [
                _rounded(pad(part, rows).t(), kind)
                for part, kind in ((grad, torch.float8_e5m2), (values, torch.float8_e4m3fn))
            ]
            to_weight = _product(transposed[0], transposed[1], weight.dtype)
        return to_values, to_weight


def _product(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], dtype: torch.dtype) -> Tensor:
    """Returns `left @ right.T` of two rounded matrices with contiguous rows."""
    return torch._scaled_mm(left[0], right[0].t(), scale_a=left[1], scale_b=right[1], out_dtype=dtype)


def _rounded(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Returns a matrix in float8, with contiguous rows, and the float32 scale to multiply it with."""
    largest = torch.finfo(dtype).max
    scale = (values.abs().amax().float() / largest).clamp(min=1e-30)
    rounded = (values.float() / scale).clamp(-largest, largest).to(dtype)
    return rounded.contiguous(), scale
