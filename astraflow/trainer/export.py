"""Export of a checkpoint as a model folder in Hugging Face format, with the bits of the published version."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.ids import Version
from astraflow.contract.weights import Dtype
from astraflow.models import models
from astraflow.models.precision import torch_dtype_of
from astraflow.models.published import PublishedPart, PublishedParts, published_parts
from astraflow.trainer.backends.state_files import read_numbers, write_tensors
from astraflow.trainer.checkpoints import finished_checkpoints, read_manifest

_WEIGHT = "weight/"
"""Prefix of the master weights among the tensors of a state."""

_INDEX = "tensors.index.json"
"""Index of a state that ranks wrote by shards."""


def export_checkpoint(checkpoint: Path, folder: Path) -> Version:
    """Writes configuration, tokenizer and weights of a checkpoint to a new folder, which `from_pretrained` loads.

    checkpoint: a folder `step-N`, or a folder of them, of which the newest is exported. The weights are the masters
    rounded as for publishing. Returns the version.
    Raises: InvalidInput when the folder is not empty or the checkpoint has no weights of a model; CorruptData.
    """
    source = _find(checkpoint)
    manifest = read_manifest(source)
    published: Mapping[str, str] = manifest["published"]
    masters = _Masters(source / "state")
    parts = _published_parts(published, masters, manifest["identity"]["model"])
    if missing := sorted(published.keys() - {part.name for found in parts.values() for part in found}):
        raise InvalidInput(
            f"cannot export {str(source)!r}: a trainer of kind {manifest['identity']['backend']!r} stores no weight "
            f"{missing[0]!r}; export a checkpoint of a trainer that trains a model",
            code="export.no_weights",
        )
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise InvalidInput(
            f"cannot export to {str(folder)!r}: it is not empty; give a new folder", code="export.folder_in_use"
        )
    models.build(manifest["identity"]["model"]).write_server_files(folder)
    rounded = {}
    for name, found in parts.items():
        master = masters.read(f"{_WEIGHT}{name}")
        for part in found:
            rounded[part.name] = part.of(master).to(torch_dtype_of(Dtype(published[part.name])))
    write_tensors(folder / "model.safetensors", rounded)
    return Version(manifest["step"])


def _published_parts(published: Collection[str], masters: "_Masters", model: Mapping[str, Any]) -> PublishedParts:
    """Returns the parts of the stored weights that were published; fewer when the checkpoint does not have all."""
    whole = [name for name in published if f"{_WEIGHT}{name}" in masters]
    if len(whole) == len(published) or not masters.has_weights:
        return {name: (PublishedPart(name=name, shape=masters.shape(f"{_WEIGHT}{name}")),) for name in whole}
    with torch.device("meta"):
        architecture = models.build(model).architecture()
    parts = published_parts(architecture)
    return {name: found for name, found in parts.items() if f"{_WEIGHT}{name}" in masters}


class _Masters:
    """Tensors of a state, whole, from one file or from the shards of all ranks."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._parts: dict[str, list[tuple[str, list[int]]]] = {}
        """File and offsets of each part, by tensor."""
        self._shapes: dict[str, list[int]] = {}
        self._files: dict[str, Any] = {}
        if (state / _INDEX).exists():
            for name, entry in read_numbers(state / _INDEX)["tensors"].items():
                self._parts[name] = [(part["file"], part["offsets"]) for part in entry["parts"]]
                self._shapes[name] = entry["shape"]
            return
        for path in sorted(state.glob("*.safetensors")):
            for name in self._open(path.name).keys():  # noqa: SIM118 (the file is not a mapping)
                self._parts[name] = [(path.name, [])]

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    @property
    def has_weights(self) -> bool:
        """True for the state of a trainer that trains a model."""
        return any(name.startswith(_WEIGHT) for name in self._parts)

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a whole tensor."""
        if name in self._shapes:
            return tuple(self._shapes[name])
        return tuple(self._open(self._parts[name][0][0]).get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        """Returns a tensor. Raises: CorruptData."""
        try:
            parts: list[tuple[Tensor, list[int]]] = [
                (self._open(file).get_tensor(name), offsets) for file, offsets in self._parts[name]
            ]
        except (OSError, SafetensorError) as problem:
            raise CorruptData(
                f"cannot read {name!r} from {str(self._state)!r}: {problem}; export another checkpoint",
                code="checkpoint.unreadable_state",
            ) from problem
        if name not in self._shapes:
            return parts[0][0]
        whole = torch.empty(self._shapes[name], dtype=parts[0][0].dtype)
        for part, offsets in parts:
            ends = (begin + size for begin, size in zip(offsets, part.shape, strict=True))
            whole[tuple(slice(begin, end) for begin, end in zip(offsets, ends, strict=True))] = part
        return whole

    def _open(self, file: str) -> Any:
        if file not in self._files:
            self._files[file] = safe_open(self._state / file, framework="pt")
        return self._files[file]


def _find(checkpoint: Path) -> Path:
    """Returns the folder of the checkpoint itself. Raises: InvalidInput."""
    if (checkpoint / "manifest.json").exists():
        return checkpoint
    newest = finished_checkpoints(checkpoint) if checkpoint.is_dir() else []
    if not newest:
        raise InvalidInput(
            f"cannot export {str(checkpoint)!r}: there is no checkpoint; give a folder `step-N` or the folder "
            "`checkpoints` of a trainer",
            code="export.no_checkpoint",
        )
    return newest[0]
