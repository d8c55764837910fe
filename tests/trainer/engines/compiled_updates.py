"""The compiled update of 8-bit moments against single operations, on any device."""

import torch
from torch import nn

from astraflow.trainer.engines.optimizers import MasterOptimizer, OptimizerOptions

SHAPES = {
    "whole blocks": (64, 512),
    "other rows": (40, 768),
    "experts": (3, 32, 256),
    "one block": (1, 256),
    "a part of a block": (64, 300),
    "vector": (512,),
}
"""Each has fewer elements than thresholds, so that both ways of computing round alike."""
MAX_OTHER_CODES = 1e-3
"""Share of codes that may be the next one: values differ in their last bits, and some are near a threshold."""


def check_compiled_update(device: torch.device) -> None:
    """Checks masters, codes and scales after several updates, with decay and clipped gradients."""
    single, compiled = (updated(device, is_compiled=is_compiled).state_tensors() for is_compiled in (False, True))

    assert single.keys() == compiled.keys()
    for name, expected in single.items():
        actual = compiled[name]
        if expected.dtype == torch.uint8:
            gaps = (expected.int() - actual.int()).abs()
            assert int(gaps.max()) <= 1, name
            assert float((gaps > 0).double().mean()) <= MAX_OTHER_CODES, name
        else:
            torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6, msg=name)


def updated(device: torch.device, *, is_compiled: bool) -> MasterOptimizer:
    """Returns an optimizer after three updates."""
    random = torch.Generator().manual_seed(0)
    weights = {name: nn.Parameter(torch.randn(shape, generator=random).to(device)) for name, shape in SHAPES.items()}
    options = OptimizerOptions(moments_dtype="uint8", learning_rate=1e-3, weight_decay=0.1, grad_clip=0.5)
    optimizer = MasterOptimizer(weights, options, rounded_to=torch.bfloat16, is_compiled=is_compiled)
    for _ in range(3):
        for weight in weights.values():
            weight.grad = torch.randn(weight.shape, generator=random).to(device)
        optimizer.update(is_loss_finite=True)
    return optimizer
