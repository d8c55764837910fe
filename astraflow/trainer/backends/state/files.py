"""State of a backend on disk: tensors as safetensors, numbers as JSON; no pickle."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from astraflow.contract.errors import CorruptData
from astraflow.trainer.backends.probe import ProbeText
from astraflow.trainer.checkpoints import FRESH_OPTIMIZER

_ALIGNMENT_BYTES = 8
"""Alignment of the data section."""

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Names of element types in the format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedFiles:
    """Captured state of one process: the content of its files. Implements `CapturedState`."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    """File name -> tensors on the host, by name."""
    numbers: Mapping[str, Mapping[str, Any]]
    """File name -> JSON object."""

    @property
    def size_bytes(self) -> int:
        return sum(value.nbytes for named in self.tensors.values() for value in named.values())

    def write(self, folder: Path) -> None:
        """Writes the files. Raises: OSError."""
        for name, tensors in self.tensors.items():
            write_tensors(folder / name, tensors)
        for name, numbers in self.numbers.items():
            write_numbers(folder / name, numbers)


class HostTensors:
    """Host memory into which tensors are copied; pinned for tensors on a GPU, and reused by the next copy.

    The memory is as large as the state: 12 bytes for each parameter with float32 moments.
    """

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}

    @torch.no_grad()
    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the tensors on the host; of DTensors, this rank's shards. Valid until the next call.

        Copies from a GPU are queued first and awaited together.
        """
        local = {name: _local(value) for name, value in tensors.items()}
        for name, value in local.items():
            if not _has_form(self._copies.get(name), value):
                self._copies[name] = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
            self._copies[name].copy_(value, non_blocking=True)
        for device in {value.device for value in local.values() if value.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        return {name: self._copies[name] for name in tensors}


def _local(value: Tensor) -> Tensor:
    return value.to_local().detach() if isinstance(value, DTensor) else value.detach()


def _has_form(copy: Tensor | None, value: Tensor) -> bool:
    return copy is not None and copy.shape == value.shape and copy.dtype == value.dtype


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes named tensors, which are on the host, as a safetensors file.

    The library's writer would keep other Python threads from running, and so the step, for as long as it writes a part.
    Source: the format's specification, https://github.com/huggingface/safetensors#format
    Raises: OSError, with its errno when the disk is full.
    """
    entries: dict[str, dict[str, object]] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, value in tensors.items():
        end = offset + value.nbytes
        entries[name] = {"dtype": _DTYPES[value.dtype], "shape": list(value.shape), "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(entries).encode()
    header = header.ljust(-(-len(header) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for value in tensors.values():
            file.write(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def write_numbers(path: Path, numbers: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(numbers))


def read_numbers(path: Path) -> dict[str, Any]:
    """Reads a JSON object. Raises: CorruptData."""
    try:
        numbers = json.loads(path.read_text())
    except (OSError, ValueError) as problem:
        raise CorruptData(
            f"cannot read {str(path)!r}: {problem}; use another checkpoint", code="checkpoint.unreadable_state"
        ) from problem
    if not isinstance(numbers, dict):
        raise CorruptData(
            f"cannot read {str(path)!r}: it does not hold a JSON object; use another checkpoint",
            code="checkpoint.unreadable_state",
        )
    return numbers


def begins_optimizer(folder: Path) -> bool:
    """Returns whether only the weights of a state are to be restored."""
    return (folder / FRESH_OPTIMIZER).exists()


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Returns torch's random state on the host and on `device`."""
    states = {"host": torch.get_rng_state()}
    if device.type == "cuda":
        states["device"] = torch.cuda.get_rng_state(device)
    return states


def read_random_state(path: Path, device: torch.device) -> dict[str, Tensor]:
    """Returns what `random_state` returned when it was saved; the current state of a device that had none.

    Raises: CorruptData.
    """
    try:
        saved = load_file(path)
    except (OSError, SafetensorError) as problem:
        raise CorruptData(
            f"cannot read {str(path)!r}: {problem}; use another checkpoint", code="checkpoint.unreadable_state"
        ) from problem
    return {name: saved.get(name, current) for name, current in random_state(device).items()}


def restore_random_state(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["host"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["device"], device)


STATE = "state.json"

_FORMAT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StepState:
    """Numbers of a checkpoint, in `state.json`."""

    updates: int
    """Optimizer steps of the policy since the run began."""
    critic_updates: int
    """Optimizer steps of the critic since the run began; 0 without a critic."""
    probe_text: ProbeText

    def numbers(self) -> dict[str, Any]:
        """Returns the state as JSON values."""
        return {
            "format": _FORMAT,
            "updates": self.updates,
            "critic_updates": self.critic_updates,
            "probe": [sequence.tolist() for sequence in self.probe_text.sequences],
            "scored_from": list(self.probe_text.scored_from),
        }

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads what `numbers` returned; no updates where the optimizer begins anew. Raises: CorruptData, naming the
        file."""
        path, is_fresh = folder / STATE, begins_optimizer(folder)
        numbers = read_numbers(path)
        try:
            if numbers["format"] != _FORMAT:
                raise ValueError(f"format is {numbers['format']!r}, this release reads {_FORMAT}")
            return cls(
                updates=0 if is_fresh else int(numbers["updates"]),
                critic_updates=0 if is_fresh else int(numbers["critic_updates"]),
                probe_text=ProbeText.from_lists(numbers["probe"], numbers["scored_from"]),
            )
        except (KeyError, TypeError, ValueError) as problem:
            raise CorruptData(
                f"cannot restore {str(path)!r}: {problem!r}; use another checkpoint",
                code="checkpoint.unreadable_state",
            ) from problem
