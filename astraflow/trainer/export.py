"""Export of a checkpoint as a model folder in Hugging Face format, with the bits of the published version."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import Version
from astraflow.contract.weights import Dtype
from astraflow.models import models
from astraflow.models.precision import torch_dtype_of
from astraflow.models.published import PublishedPart, PublishedParts, published_parts
from astraflow.trainer.adapter_export import merged_weights, write_peft_folder
from astraflow.trainer.backends.state.adapters import AdapterRecord
from astraflow.trainer.backends.state.files import write_tensors
from astraflow.trainer.backends.state.sharded import WholeTensors
from astraflow.trainer.checkpoints import finished_checkpoints, read_manifest

_WEIGHT = "weight/"
"""Prefix of the master weights among the tensors of a state."""


def export_checkpoint(
    checkpoint: Path, folder: Path, *, version: int | None = None, adapters_only: bool = False
) -> Version:
    """Writes configuration, tokenizer and weights of a checkpoint to a new folder, which `from_pretrained` loads.

    checkpoint: a folder `step-N`, or a folder of them, of which `version` is exported, by default the newest. The
    weights are the masters rounded as for publishing; adapters are added to their base. adapters_only: writes adapters
    alone, in the format of peft. Returns the version.
    Raises: InvalidInput when the folder is not empty, or the checkpoint has no weights of a model or, for
    `adapters_only`, no adapters; CorruptData.
    """
    source = _find(checkpoint, version)
    manifest = read_manifest(source)
    published: Mapping[str, str] = manifest["published"]
    model: Mapping[str, Any] = manifest["identity"]["model"]
    masters = WholeTensors(source / "state")
    parts = _published_parts(published, masters, model)
    if missing := sorted(
        published.keys() - {part.name for parameter_parts in parts.values() for part in parameter_parts}
    ):
        raise InvalidInput(
            f"cannot export {str(source)!r}: a trainer of kind {manifest['identity']['backend']!r} stores no weight "
            f"{missing[0]!r}; export a checkpoint of a trainer that trains a model",
            code="export.no_weights",
        )
    record = AdapterRecord.read(source / "state")
    if record is None and adapters_only:
        raise InvalidInput(
            f"cannot export the adapters of {str(source)!r}: its trainer trains whole models; export the model",
            code="export.no_adapters",
        )
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise InvalidInput(
            f"cannot export to {str(folder)!r}: it is not empty; give a new folder", code="export.folder_in_use"
        )
    rounded = {}
    for name, parameter_parts in parts.items():
        master = masters.read(f"{_WEIGHT}{name}")
        for part in parameter_parts:
            rounded[part.name] = part.of(master).to(torch_dtype_of(Dtype(published[part.name])))
    if record is not None and adapters_only:
        write_peft_folder(folder, model, record, rounded)
    else:
        if record is not None:
            rounded = merged_weights(model, record, rounded, Dtype(next(iter(published.values()))))
        models.build(model).write_server_files(folder)
        write_tensors(folder / "model.safetensors", rounded)
    return Version(manifest["step"])


def _published_parts(published: Collection[str], masters: WholeTensors, model: Mapping[str, Any]) -> PublishedParts:
    """Returns the parts of the stored weights that were published; fewer when the checkpoint does not have all."""
    whole = [name for name in published if f"{_WEIGHT}{name}" in masters]
    if len(whole) == len(published) or not any(name.startswith(_WEIGHT) for name in masters):
        return {name: (PublishedPart(name=name, shape=masters.shape(f"{_WEIGHT}{name}")),) for name in whole}
    with torch.device("meta"):
        architecture = models.build(model).architecture()
    parts = published_parts(architecture)
    return {name: parameter_parts for name, parameter_parts in parts.items() if f"{_WEIGHT}{name}" in masters}


def _find(checkpoint: Path, version: int | None) -> Path:
    """Returns the folder of the checkpoint itself. Raises: InvalidInput."""
    if (checkpoint / "manifest.json").exists():
        return checkpoint
    folders = finished_checkpoints(checkpoint) if checkpoint.is_dir() else []
    if not folders:
        raise InvalidInput(
            f"cannot export {str(checkpoint)!r}: there is no checkpoint; give a folder `step-N` or the folder "
            "`checkpoints` of a trainer",
            code="export.no_checkpoint",
        )
    versions = {int(folder.name.rpartition("-")[2]): folder for folder in folders}
    if version is not None and version not in versions:
        raise InvalidInput(
            f"cannot export version {version} of {str(checkpoint)!r}: there are checkpoints of "
            f"{', '.join(map(str, versions))}; choose one of these, and let later runs keep more with "
            "trainer.keep_checkpoints",
            code="export.no_version",
        )
    return folders[0] if version is None else versions[version]
