"""AdamW with 8-bit moments in one compiled pass, which reads and writes each element once.

Not compiled, a step is some twenty operations, each of which reads and writes temporary values of four bytes for each
element.
"""

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from astraflow.trainer.engines.moment_codes import BLOCK_ELEMENTS, Codebook, CodedMoment

_MAX_ELEMENTS = 1 << 28
"""Elements of one pass: whole blocks. Bounds what torch copies while it tries variants of the first pass: 1.6 GB."""


def has_whole_blocks(master: Tensor) -> bool:
    """Returns whether each row of a matrix consists of whole blocks, which the compiled pass needs."""
    return math.prod(master.shape[1:]) % BLOCK_ELEMENTS == 0


def step_rates(options: Mapping[str, Any], *, gradient_scale: float, applied: int, device: torch.device) -> Tensor:
    """Returns the numbers of a step for `update_coded`, float32 `[7]`: as a tensor, so that others need no compilation.

    options: as those of torch's functional AdamW. gradient_scale: factor of the gradient. applied: earlier updates.
    """
    shares = [1 - options["beta1"], 1 - options["beta2"]]
    biases = [1 - options[beta] ** (applied + 1) for beta in ("beta1", "beta2")]
    decay = 1 - options["lr"] * options["weight_decay"]
    numbers = [gradient_scale, *shares, options["eps"], decay, options["lr"] / biases[0], 1 / math.sqrt(biases[1])]
    return torch.tensor(numbers, dtype=torch.float32, device=device)


def update_coded(
    name: str,
    master: Tensor,
    gradient: Tensor,
    moments: tuple[CodedMoment, CodedMoment],
    *,
    rates: Tensor,
    thresholds: Tensor,
) -> None:
    """Updates a master and its moments in place; the gradient stays as it is.

    thresholds: of a whole number of blocks, as for `CodedMoment.write`.
    """
    codes = [moment.codes[name].view(-1) for moment in moments]
    scales = [moment.scales[name].view(-1) for moment in moments]
    codebooks = [moment.codebook(master.device) for moment in moments]
    master, gradient = master.view(-1), gradient.view(-1)
    for begin in range(0, len(master), _MAX_ELEMENTS):
        part = slice(begin, begin + _MAX_ELEMENTS)
        blocks = slice(begin // BLOCK_ELEMENTS, (begin + _MAX_ELEMENTS) // BLOCK_ELEMENTS)
        state = [stored for pair in zip(codes, scales, strict=True) for stored in (pair[0][part], pair[1][blocks])]
        _compiled()(master[part], gradient[part], *state, rates, thresholds.view(-1, BLOCK_ELEMENTS), *codebooks)


@cache
def _compiled() -> Any:
    return torch.compile(_update, fullgraph=True, dynamic=True)


def _update(
    master: Tensor,
    gradient: Tensor,
    first_codes: Tensor,
    first_scales: Tensor,
    second_codes: Tensor,
    second_scales: Tensor,
    rates: Tensor,
    thresholds: Tensor,
    first_codebook: Codebook,
    second_codebook: Codebook,
) -> None:
    gradient_scale, share1, share2, epsilon, decay, step_size, scale = rates.unbind()
    slopes = gradient.view(-1, BLOCK_ELEMENTS) * gradient_scale
    first = first_codebook.decode(first_codes.view(-1, BLOCK_ELEMENTS)) * first_scales[:, None]
    second = second_codebook.decode(second_codes.view(-1, BLOCK_ELEMENTS)) * second_scales[:, None]
    first = first + share1 * (slopes - first)
    second = second + share2 * (slopes * slopes - second)
    step = step_size * first / (second.sqrt() * scale + epsilon)
    needed = thresholds.index_select(0, torch.arange(len(slopes), device=slopes.device) % len(thresholds))
    coded_first, new_first_scales = first_codebook.encode(first, needed)
    coded_second, new_second_scales = second_codebook.encode(second, needed)
    master.copy_((master.view(-1, BLOCK_ELEMENTS) * decay - step).view(-1))
    first_codes.copy_(coded_first.view(-1))
    first_scales.copy_(new_first_scales)
    second_codes.copy_(coded_second.view(-1))
    second_scales.copy_(new_second_scales)
