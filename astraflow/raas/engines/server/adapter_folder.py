"""Low-rank adapters as a folder in the format of PEFT, which engine servers load in addition to their base."""

import json
from pathlib import Path

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.raas.engines.memory import MAX_RANK
from astraflow.raas.engines.merged_adapters import binding_to_base
from astraflow.weights.adapters import PEFT_CONFIG, PEFT_PREFIX, PEFT_WEIGHTS, adapted_weights, peft_config
from astraflow.weights.tensors import VerifiedWeights, tensor_bits


def write_adapter(folder: Path, weights: VerifiedWeights) -> None:
    """Writes `adapter_config.json` and `adapter_model.safetensors` into a new folder. weights: with their base.

    Raises: InvalidInput when the adapters do not fit their base, or a server cannot load them; CorruptData.
    """
    base = weights.adapter_base
    assert base is not None  # noqa: S101 (the caller merges other weights)
    binding = binding_to_base(weights, base)
    pairs = adapted_weights(weights.manifest, base.manifest)
    ranks = {pair.down.shape[0] for pair in pairs}
    if len(ranks) != 1 or max(ranks) > MAX_RANK:
        raise InvalidInput(
            f"cannot serve adapters of {weights.manifest.policy!r} version {weights.manifest.version} as such: their "
            f"ranks are {sorted(ranks)}, a server loads one rank up to {MAX_RANK}; set lora = false, which adds them "
            "to the weights",
            code="engine.adapter_rank",
        )
    (rank,) = ranks
    folder.mkdir()
    config = peft_config((spec.name for spec in weights.manifest.tensors), rank=rank, scale=binding.scale)
    (folder / PEFT_CONFIG).write_text(json.dumps(config))
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for spec in weights.manifest.tensors:
        entries[f"{PEFT_PREFIX}{spec.name}"] = {
            "dtype": spec.dtype.value,
            "shape": spec.shape,
            "data_offsets": (spec.offset, spec.offset + spec.size_bytes),
        }
    header = json.dumps(entries, separators=(",", ":")).encode()
    header = header.ljust(-(-len(header) // 8) * 8)
    with (folder / PEFT_WEIGHTS).open("wb") as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for spec in weights.manifest.tensors:
            file.write(np.ascontiguousarray(tensor_bits(spec, weights.buffer)).tobytes())
