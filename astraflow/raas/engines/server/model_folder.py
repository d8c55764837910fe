"""Folder from which a server loads its model: configuration and tokenizer, and the weights in shared memory."""

import json
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow.contract.errors import Conflict, InvalidInput
from astraflow.contract.ids import Version
from astraflow.models import models
from astraflow.raas.engines.memory import MAX_RANK
from astraflow.raas.engines.merged_adapters import binding_to_base
from astraflow.runtime.locks import exclusive_lock
from astraflow.runtime.logs import get_logger
from astraflow.weights.adapters import PEFT_CONFIG, PEFT_PREFIX, PEFT_WEIGHTS, adapted_weights, peft_config
from astraflow.weights.shared_memory import CREATION_GRACE_S, MEMORY_FOLDER
from astraflow.weights.tensors import VerifiedWeights, tensor_bits
from astraflow.weights.transfer.safetensors_file import SafetensorsFile

log = get_logger()

WEIGHTS = "model.safetensors"


class ModelFolder:
    """Temporary folder in shared memory. The weights are those staged last; `patch` has their changes, if any.

    The process holds a lock on it. The next engine that starts on the machine removes the folder of a killed process.
    """

    def __init__(self, model: Mapping[str, Any]) -> None:
        remove_unused_folders()
        self._lock = ExitStack()
        self.path = _create_locked_folder(self._lock)
        try:
            models.build(model).write_server_files(self.path)
        except BaseException:
            self._remove()
            raise
        self._file = SafetensorsFile(self.path / WEIGHTS)
        self.patch: Path | None = None
        """Changes from version `patch_base` to the staged version; None when the whole file must be loaded."""
        self.root_hash = b""
        """Root hash of the staged weights."""
        self.adapter: Path | None = None
        """Folder of the adapters that are served on the staged weights; None without adapters."""
        self.adapter_version: Version | None = None
        self._unused_adapter: Path | None = None
        self.patch_base: Version | None = None

    @property
    def version(self) -> Version | None:
        """Staged version; None before the first and after a failed `stage`."""
        return self._file.version

    def stage(self, weights: VerifiedWeights, *, with_patch: bool) -> None:
        """Makes the folder hold these weights; blocks. No server may load meanwhile.

        Raises: StorageFull, CorruptData.
        """
        self.patch = self.patch_base = None
        self.root_hash = b""
        self._remove_adapters()
        self._file.stage(weights)
        self.root_hash = weights.manifest.root_hash
        if with_patch and weights.changes is not None:
            patch = self.path / "changes.patch"  # servers read every *.safetensors file of the folder at a reload
            write_patch(patch, weights, weights.changes)
            self.patch, self.patch_base = patch, weights.base

    def stage_adapter(self, weights: VerifiedWeights) -> None:
        """Makes the folder hold adapters and, if it has another, their base; blocks. No server may load meanwhile.

        Raises: InvalidInput, StorageFull, CorruptData.
        """
        base = weights.adapter_base
        assert base is not None  # noqa: S101 (these are adapters)
        folder = self.path / f"adapter-{weights.manifest.version}-{secrets.token_hex(4)}"
        try:
            write_adapter(folder, weights)
            if self.root_hash != base.manifest.root_hash:
                self.stage(base, with_patch=False)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if self._unused_adapter is not None:
            shutil.rmtree(self._unused_adapter, ignore_errors=True)
        self._unused_adapter = self.adapter  # servers may read it until they have loaded the new ones
        self.adapter, self.adapter_version = folder, weights.manifest.version

    def _remove_adapters(self) -> None:
        for folder in (self.adapter, self._unused_adapter):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        self.adapter = self.adapter_version = self._unused_adapter = None

    def close(self) -> None:
        """Removes the folder and the weights."""
        self._file.close()
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def remove_unused_folders() -> int:
    """Removes folders of this user that no process holds, left over from killed nodes; returns their number."""
    removed = 0
    for folder in MEMORY_FOLDER.glob(f"{_PREFIX}*"):
        try:
            removed += _remove_if_unused(folder)
        except FileNotFoundError:  # its owner, or another node, has just removed it
            continue
    if removed:
        log.info("engine_folders_removed", folders=removed)
    return removed


def _create_locked_folder(stack: ExitStack) -> Path:
    """Returns a new folder. `stack` holds its lock, whose file gets its name only when it is locked."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=MEMORY_FOLDER))
    partial = folder / f".{_LOCK}"
    stack.enter_context(exclusive_lock(partial, refusal=_in_use(folder)))
    partial.rename(folder / _LOCK)
    return folder


def _remove_if_unused(folder: Path) -> bool:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return False
    if not (folder / _LOCK).exists():  # its process was killed, or has not locked it yet
        is_old = time.time() - status.st_mtime > CREATION_GRACE_S
        if is_old:
            shutil.rmtree(folder)
        return is_old
    try:
        with exclusive_lock(folder / _LOCK, refusal=_in_use(folder)):
            shutil.rmtree(folder)
    except Conflict:
        return False
    return True


def _in_use(folder: Path) -> Conflict:
    return Conflict(f"cannot remove {str(folder)!r}: a node uses it; stop that node first", code="engine.folder_in_use")


_PREFIX = "astraflow-engine-"
_LOCK = "lock"


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
