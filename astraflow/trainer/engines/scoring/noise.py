"""Randomness of the training pass, which would make trained logprobs differ from sampled ones."""

from torch import nn

_RATES = ("dropout", "pdrop", "layerdrop", "drop_prob", "jitter")
"""Parts of the names of attributes with a rate: of dropped activations, layers or attention, or a router's noise."""
_CHOSEN = "lora_dropout"
"""Name of the dropout that a recipe sets."""


def disable_noise(model: nn.Module) -> None:
    """Sets the rates of dropout and router noise of a model's modules to 0, except that of adapters."""
    for name, module in model.named_modules():
        if _CHOSEN in name:
            continue
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for attribute, value in list(vars(module).items()):
            if isinstance(value, float) and any(part in attribute for part in _RATES):
                setattr(module, attribute, 0.0)
