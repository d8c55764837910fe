"""A backend's state on disk: tensors as safetensors, numbers as JSON. Parsed, never executed."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from astraflow.contract.errors import CorruptData

_OS_ERROR = re.compile(r"os error (\d+)")
"""How safetensors spells what the operating system said."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write these under their names. Raises: OSError, with its errno when the disk is full."""
    try:
        save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, path)
    except SafetensorError as problem:
        code = _OS_ERROR.search(str(problem))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from problem


def read_tensors(path: Path, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `write_tensors` wrote, on the host.

    Raises: CorruptData, naming the file, unless names, types and shapes are those of `like`.
    """
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as problem:
        raise CorruptData(f"{path} cannot be read: {problem}") from problem
    for name in sorted(found.keys() ^ like.keys()):
        raise CorruptData(f"{path} does not fit this model: tensor {name} is in one of them only")
    for name, value in like.items():
        if found[name].shape != value.shape or found[name].dtype != value.dtype:
            raise CorruptData(
                f"{path}: tensor {name} is {found[name].dtype} {tuple(found[name].shape)}, "
                f"this model's is {value.dtype} {tuple(value.shape)}"
            )
    return found


def write_numbers(path: Path, numbers: Mapping[str, Any]) -> None:
    """Write a JSON object."""
    path.write_text(json.dumps(numbers))


def read_numbers(path: Path) -> dict[str, Any]:
    """A JSON object. Raises: CorruptData."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as problem:
        raise CorruptData(f"{path} cannot be read: {problem}") from problem
    if not isinstance(found, dict):
        raise CorruptData(f"{path} does not hold a JSON object")
    return found


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Torch's random state on the host and on `device`."""
    states = {"host": torch.get_rng_state()}
    if device.type == "cuda":
        states["device"] = torch.cuda.get_rng_state(device)
    return states


def restore_random_state(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Take back what `random_state` gave."""
    torch.set_rng_state(states["host"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["device"], device)
