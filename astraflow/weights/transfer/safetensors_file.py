"""Served version as a safetensors file in shared memory, for engines that reload their weights from disk.

The format's data section is a version's flat layout: tensors back to back, in order. So a version is a header before
the bits that a node has verified, and the next version is a patch of the same file.
Source: the format's specification, https://github.com/huggingface/safetensors#format
"""

import json
from pathlib import Path
from typing import Self
from uuid import uuid4

import numpy as np

from astraflow.contract.errors import CorruptData
from astraflow.contract.ids import Version
from astraflow.contract.weights import Manifest
from astraflow.runtime.logs import get_logger
from astraflow.weights.shared_memory import MEMORY_FOLDER, SharedBuffer
from astraflow.weights.tensors import Buffer, VerifiedWeights, has_same_layout, tensor_bits, verify
from astraflow.weights.transfer.transfer_application import Changes

log = get_logger()

_PAGE_BYTES = 4096
_LENGTH_BYTES = 8
_VERSION_DIGITS = 20


class SafetensorsFile:
    """Safetensors file that versions are staged in; `path` is a link to it in shared memory. Use as a context manager.

        `path` absent ─► staged, verified ─► `path` exists: an engine reads it ─► absent ─► patched, verified ─► ...

    Between reloads the file has no reader, so one file is enough: an engine copies weights when it loads them (SGLang
    and vLLM do), and serves from its copy while the next version is staged. `path` is absent meanwhile, so that no
    process opens a partial version. Stage before the engine is paused; the pause is only the reload. As for every
    shared buffer, the memory is freed when the process is killed.
    """

    def __init__(self, path: Path) -> None:
        """path: usually `model.safetensors` in a folder with the model's configuration and tokenizer."""
        self.path = path
        self._memory: _Memory | None = None
        self._held: Manifest | None = None
        """Manifest of the file's content; None while the content is undefined."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    @property
    def version(self) -> Version | None:
        """Version that can be read; None when `path` is absent."""
        return None if self._held is None else self._held.version

    def stage(self, weights: VerifiedWeights, *, workers: int = 1) -> None:
        """Makes `path` this version; writes only the changes when the file holds its base.

        Must not be called while an engine reloads. Raises: StorageFull; CorruptData when memory does not retain what is
        written to it. `path` is then absent.
        """
        manifest, held = weights.manifest, self._held
        self.path.unlink(missing_ok=True)
        self._held = None
        if self._memory is None or held is None or not has_same_layout(held, manifest):
            self._remove_memory()
            self._memory, held = _Memory(manifest), None
        data = self._memory.data
        if held is not None and weights.changes is not None and weights.base == held.version:
            _patch(data, weights, weights.changes)
        else:
            data[:] = weights.buffer
        try:
            verify(manifest, data, workers=workers)
        except CorruptData as problem:  # another process wrote to the file
            log.warning("safetensors_rewritten", path=str(self.path), problem=str(problem))
            data[:] = weights.buffer
            verify(manifest, data, workers=workers)
        self._memory.describe(manifest)
        link = self.path.with_name(f".{self.path.name}.{uuid4().hex}")
        link.symlink_to(self._memory.path)
        link.replace(self.path)
        self._held = manifest

    def close(self) -> None:
        """Removes the file; an engine that reads it may finish."""
        self.path.unlink(missing_ok=True)
        self._held = None
        self._remove_memory()

    def _remove_memory(self) -> None:
        if self._memory is not None:
            self._memory.remove()
            self._memory = None


class _Memory:
    """Shared buffer with space for a header and, beginning on a page, the bits of a version."""

    def __init__(self, manifest: Manifest) -> None:
        longest = _LENGTH_BYTES + len(_header(manifest)) + _VERSION_DIGITS
        self._header_bytes = -(-longest // _PAGE_BYTES) * _PAGE_BYTES
        self._buffer = SharedBuffer(self._header_bytes + manifest.size_bytes, folder=MEMORY_FOLDER)

    @property
    def path(self) -> str:
        return self._buffer.file.path

    @property
    def data(self) -> Buffer:
        """Writable bits of the version."""
        return self._buffer.buffer[self._header_bytes :]

    def describe(self, manifest: Manifest) -> None:
        """Writes the header: its length, JSON, and padding with spaces so that the data begins on a page."""
        length = self._header_bytes - _LENGTH_BYTES
        header = length.to_bytes(_LENGTH_BYTES, "little") + _header(manifest).ljust(length)
        self._buffer.buffer[: self._header_bytes] = np.frombuffer(header, dtype=np.uint8)

    def remove(self) -> None:
        """Removes the file name; readers may finish."""
        self._buffer.unlink()


def _patch(data: Buffer, weights: VerifiedWeights, changes: Changes) -> None:
    for spec in weights.manifest.tensors:
        positions = changes.get(spec.name)
        if positions is not None:
            tensor_bits(spec, data)[positions] = tensor_bits(spec, weights.buffer)[positions]


def _header(manifest: Manifest) -> bytes:
    """Returns the format's entry of each tensor, with the version as metadata."""
    entries: dict[str, object] = {
        "__metadata__": {
            "format": "pt",
            "policy": manifest.policy,
            "version": str(manifest.version),
            "root_hash": manifest.root_hash.hex(),
        }
    }
    for spec in manifest.tensors:
        entries[spec.name] = {
            "dtype": spec.dtype.value,
            "shape": spec.shape,
            "data_offsets": (spec.offset, spec.offset + spec.size_bytes),
        }
    return json.dumps(entries, separators=(",", ":")).encode()
