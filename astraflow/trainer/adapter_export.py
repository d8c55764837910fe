"""Export of adapters: added to their base as nodes add them, or as a folder in the format of peft."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from astraflow.contract.errors import InvalidInput
from astraflow.contract.weights import Dtype
from astraflow.models import models
from astraflow.models.causal import named_weights
from astraflow.models.precision import torch_dtype_of
from astraflow.models.published import published_parts, published_weights
from astraflow.trainer.backends.state.adapters import AdapterRecord
from astraflow.trainer.backends.state.files import write_tensors
from astraflow.trainer.engines.adapters import base_root
from astraflow.trainer.model_preparation import prepare_model
from astraflow.weights.adapters import DOWN_SUFFIX, PEFT_CONFIG, PEFT_PREFIX, PEFT_WEIGHTS, UP_SUFFIX, peft_config


@torch.no_grad()
def merged_weights(
    model: Mapping[str, Any], record: AdapterRecord, adapters: Mapping[str, Tensor], dtype: Dtype
) -> dict[str, Tensor]:
    """Returns the whole weights: base plus adapters, summed in float32 and rounded once to the published type.

    model: spec of the base. adapters: as published, by name. Raises: InvalidInput when the model's weights are not the
    base of the adapters.
    """
    loaded = models.build(model).load(prepare_model(model))
    weights = named_weights(loaded)
    if base_root(published_parts(loaded), dtype, lambda name: weights[name].detach()).hex() != record.base_root:
        raise InvalidInput(
            "cannot export the model: its adapters were trained on other weights than those of its model spec; restore "
            "the model's files, or export the adapters alone",
            code="export.other_base",
        )
    rounded = {name: weight.to(torch_dtype_of(dtype)) for name, weight in published_weights(loaded).items()}
    for name in adapters:
        if name.endswith(DOWN_SUFFIX):
            stem = name.removesuffix(DOWN_SUFFIX)
            down, up = adapters[name].float(), adapters[stem + UP_SUFFIX].float()
            whole = rounded[f"{stem}.weight"].float().addmm_(up, down, alpha=record.scale)
            rounded[f"{stem}.weight"] = whole.to(torch_dtype_of(dtype))
    return rounded


def write_peft_folder(
    folder: Path, model: Mapping[str, Any], record: AdapterRecord, adapters: Mapping[str, Tensor]
) -> None:
    """Writes adapters, as published, so that `PeftModel.from_pretrained` loads them."""
    config = peft_config(adapters, rank=record.rank, scale=record.scale)
    config["base_model_name_or_path"] = str(prepare_model(model))
    (folder / PEFT_CONFIG).write_text(json.dumps(config, indent=1))
    write_tensors(folder / PEFT_WEIGHTS, {f"{PEFT_PREFIX}{name}": value for name, value in adapters.items()})
