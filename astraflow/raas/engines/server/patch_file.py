"""File with the changed elements of a version, in shared memory: the input of a patch in place.

It is a safetensors file with two tensors per changed tensor of the checkpoint: `NAME.positions` (int64 `[n]`, flat,
sorted) and `NAME.values` (`[n]`, the dtype of the tensor). `in_server/astraflow_weight_mapping.py` reads it.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from astraflow.weights.tensors import VerifiedWeights, tensor_bits

_ALIGNMENT_BYTES = 8


def write_patch(path: Path, weights: VerifiedWeights, changes: Mapping[str, npt.NDArray[np.int64]]) -> int:
    """Writes the values of `weights` at the positions `changes`; returns the number of elements.

    `path` should be in shared memory: the server maps it while it is paused.
    """
    entries: dict[str, object] = {}
    arrays: list[npt.NDArray[np.generic]] = []
    offset = elements = 0
    for spec in weights.manifest.tensors:
        positions = changes.get(spec.name)
        if positions is None or not len(positions):
            continue
        elements += len(positions)
        values = tensor_bits(spec, weights.buffer)[positions]
        for name, dtype, array in (
            (f"{spec.name}.positions", "I64", positions.astype("<i8", copy=False)),
            (f"{spec.name}.values", spec.dtype.value, values),
        ):
            entries[name] = {
                "dtype": dtype,
                "shape": [len(positions)],
                "data_offsets": [offset, offset + array.nbytes],
            }
            arrays.append(array)
            offset += array.nbytes
    entries = dict(sorted(entries.items(), key=lambda entry: entry[1]["data_offsets"]))  # type: ignore[index] # built above
    header = json.dumps(entries, separators=(",", ":")).encode()
    header = header.ljust(-(-len(header) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES)
    partial = path.with_name(f".{path.name}")
    with partial.open("wb") as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for array in arrays:
            file.write(array.tobytes())
    partial.replace(path)
    return elements
