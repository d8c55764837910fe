"""Export of a checkpoint as a model folder in Hugging Face format, with the bits of the published version."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import Version
from astraflow.contract.weights import Dtype
from astraflow.models import models
from astraflow.models.base import ModelSource
from astraflow.models.causal import kept_buffers, named_weights
from astraflow.models.precision import torch_dtype_of
from astraflow.models.published import PublishedPart, PublishedParts, published_parts
from astraflow.models.stored import kept_tensors
from astraflow.trainer.backends.state.adapters import AdapterRecord
from astraflow.trainer.backends.state.files import write_tensors
from astraflow.trainer.backends.state.sharded import WholeTensors
from astraflow.trainer.checkpoints import finished_checkpoints, read_manifest
from astraflow.trainer.engines.adapters import base_root
from astraflow.trainer.engines.optimizers import WEIGHT_PREFIX
from astraflow.trainer.model_preparation import prepare_model
from astraflow.weights.adapters import (
    DOWN_SUFFIX,
    MAX_LOST,
    PEFT_CONFIG,
    PEFT_PREFIX,
    PEFT_WEIGHTS,
    UP_SUFFIX,
    peft_config,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Result of an export."""

    version: Version
    lost_share: float | None = None
    """Root mean square of what rounding removed of the adapters' change, over that of the change; None without a sum
    of adapters and their base."""


def export_checkpoint(
    checkpoint: Path,
    folder: Path,
    *,
    version: int | None = None,
    adapters_only: bool = False,
    rounds_sum: bool = False,
    accepts_loss: bool = False,
) -> Exported:
    """Writes configuration, tokenizer and weights of a checkpoint to a new folder, which `from_pretrained` loads.

    checkpoint: a folder `step-N`, or a folder of them, of which `version` is exported, by default the newest. The
    weights are the masters rounded as for publishing; tensors of the source that no model computes with are copied.
    Adapters are added to their base in float32, in which the model is then written: the sum in the published type loses
    most of a young adapter. adapters_only: writes adapters alone, in the format of peft. rounds_sum: writes the sum in
    the published type, if rounding removes at most `MAX_LOST` of the adapters' change or with `accepts_loss`.
    Raises: InvalidInput when the folder is not empty, the checkpoint has no weights of a model or, for `adapters_only`,
    no adapters, or rounding removes more; CorruptData.
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
    if folder.exists() and any(folder.iterdir()):
        raise InvalidInput(
            f"cannot export to {str(folder)!r}: it is not empty; give a new folder", code="export.folder_in_use"
        )
    rounded = {}
    for name, parameter_parts in parts.items():
        master = masters.read(f"{WEIGHT_PREFIX}{name}")
        for part in parameter_parts:
            rounded[part.name] = _rounded(part.of(master), Dtype(published[part.name]))
    number, lost_share = Version(manifest["step"]), None
    if record is not None and adapters_only:
        folder.mkdir(parents=True, exist_ok=True)
        write_peft_folder(folder, model, record, rounded)
        return Exported(version=number)
    if record is not None:
        dtype = Dtype(next(iter(published.values())))
        rounded, lost_share = merged_weights(model, record, rounded, dtype, rounds_sum=rounds_sum)
        _check_loss(source, lost_share, accepts_loss=accepts_loss)
    folder.mkdir(parents=True, exist_ok=True)
    models.build(model).write_server_files(folder)
    if record is not None and not rounds_sum:
        _set_type(folder / "config.json", "float32")
    write_tensors(folder / "model.safetensors", {**rounded, **_kept_tensors(models.build(model))})
    return Exported(version=number, lost_share=lost_share)


def _check_loss(checkpoint: Path, lost_share: float, *, accepts_loss: bool) -> None:
    if lost_share > MAX_LOST and not accepts_loss:
        raise InvalidInput(
            f"cannot round the sum of the adapters of {str(checkpoint)!r} and their base: {lost_share:.0%} of the "
            f"adapters' change would be lost, where {MAX_LOST:.0%} are allowed; export without --rounded (float32), or "
            "with --adapters-only, or accept the loss with --force",
            code="export.lossy_sum",
        )


def _set_type(file: Path, dtype: str) -> None:
    """Sets the type in which the model is loaded, in its configuration."""
    config = json.loads(file.read_text())
    config.pop("torch_dtype", None)  # the name in releases before transformers 5
    file.write_text(json.dumps({**config, "dtype": dtype}, indent=2))


def _published_parts(published: Collection[str], masters: WholeTensors, model: Mapping[str, Any]) -> PublishedParts:
    """Returns the parts of the stored weights that were published; fewer when the checkpoint does not have all."""
    whole = [name for name in published if f"{WEIGHT_PREFIX}{name}" in masters]
    if len(whole) == len(published) or not any(name.startswith(WEIGHT_PREFIX) for name in masters):
        return {name: (PublishedPart(name=name, shape=masters.shape(f"{WEIGHT_PREFIX}{name}")),) for name in whole}
    with torch.device("meta"):
        architecture = models.build(model).architecture()
    parts = published_parts(architecture)
    return {name: parameter_parts for name, parameter_parts in parts.items() if f"{WEIGHT_PREFIX}{name}" in masters}


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


@torch.no_grad()
def merged_weights(
    model: Mapping[str, Any],
    record: AdapterRecord,
    adapters: Mapping[str, Tensor],
    dtype: Dtype,
    *,
    rounds_sum: bool = False,
) -> tuple[dict[str, Tensor], float]:
    """Returns the whole weights, base plus adapters in float32, and the share of the change that rounding removed.

    model: spec of the base. adapters: as published, by name. rounds_sum: weights have the published type.
    Raises: InvalidInput when the model's weights are not the base of the adapters.
    """
    loaded = models.build(model).load(prepare_model(model))
    weights = {**named_weights(loaded), **kept_buffers(loaded)}
    parts = published_parts(loaded)
    if base_root(parts, dtype, lambda name: weights[name].detach()).hex() != record.base_root:
        raise InvalidInput(
            "cannot export the model: its adapters were trained on other weights than those of its model spec; restore "
            "the model's files, or export the adapters alone",
            code="export.other_base",
        )
    rounded = {
        part.name: _rounded(part.of(weights[name].detach()), part.dtype(dtype))
        for name, published in parts.items()
        for part in published
    }
    if not rounds_sum:
        rounded = {name: value.float() if value.is_floating_point() else value for name, value in rounded.items()}
    change, lost = 0.0, 0.0
    for name in adapters:
        if name.endswith(DOWN_SUFFIX):
            stem = name.removesuffix(DOWN_SUFFIX)
            down, up = adapters[name].float(), adapters[stem + UP_SUFFIX].float()
            base = rounded[f"{stem}.weight"]
            whole = base.float().addmm(up, down, alpha=record.scale)
            rounded[f"{stem}.weight"] = whole.to(base.dtype)
            change += float((whole - base).double().square().sum())
            lost += float((whole - rounded[f"{stem}.weight"]).double().square().sum())
    return rounded, (lost / change) ** 0.5 if change else 0.0


def _kept_tensors(source: ModelSource) -> dict[str, Tensor]:
    """Returns the tensors of the source's checkpoint that no model computes with, which are exported as they are."""
    folder = source.checkpoint
    if folder is None:
        return {}
    with torch.device("meta"):
        architecture = source.architecture()
    return kept_tensors(folder, architecture)


def _rounded(values: Tensor, dtype: Dtype) -> Tensor:
    """Returns values as published; integers keep their width."""
    return values.to(torch_dtype_of(dtype)) if values.is_floating_point() else values


def write_peft_folder(
    folder: Path, model: Mapping[str, Any], record: AdapterRecord, adapters: Mapping[str, Tensor]
) -> None:
    """Writes adapters, as published, so that `PeftModel.from_pretrained` loads them."""
    config = peft_config(adapters, rank=record.rank, scale=record.scale)
    config["base_model_name_or_path"] = str(prepare_model(model))
    (folder / PEFT_CONFIG).write_text(json.dumps(config, indent=1))
    write_tensors(folder / PEFT_WEIGHTS, {f"{PEFT_PREFIX}{name}": value for name, value in adapters.items()})
