"""Options of speed and memory, applied to the models of an engine."""

import os
import shutil
import sysconfig
from collections.abc import Collection, Mapping
from pathlib import Path

from astraflow.contract.errors import InvalidInput
from astraflow.trainer.engines.base import Model, ModelRole
from astraflow.trainer.engines.scoring.scorer import Scorer
from astraflow.trainer.engines.spec import EngineSpec

_COMPILERS = ("cc", "gcc", "clang")


def apply_options(scorers: Mapping[Model, Scorer], trained: Collection[Model], spec: EngineSpec) -> None:
    """Applies options of speed and memory to the models of an engine. A critic computes in float32, not in float8.

    trained: roles whose models have a backward pass. Raises: InvalidInput when blocks cannot be compiled on this host.
    """
    if spec.compile_blocks:
        _check_compiler()
    if spec.float8:
        for scorer in {scorer for role, scorer in scorers.items() if role is not ModelRole.CRITIC}:
            scorer.use_float8()
    # Compiled blocks already compute again what is cheap; under selective checkpoints they would not be compiled.
    if spec.recompute == "full" or (spec.recompute == "selective" and not spec.compile_blocks):
        for role in trained:
            scorers[role].recompute_activations(spec.recompute)
    if spec.compile_blocks:
        for scorer in set(scorers.values()):
            scorer.compile_blocks()


def _check_compiler() -> None:
    """Checks for the C compiler that torch.compile calls, and for the headers of Python. Raises: InvalidInput."""
    if "CC" not in os.environ and not any(map(shutil.which, _COMPILERS)):
        raise InvalidInput(
            "cannot compile the blocks of the model: this host has no C compiler; install one (Debian: g++), or set "
            "compile_blocks = false",
            code="trainer.no_compiler",
        )
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        raise InvalidInput(
            f"cannot compile the blocks of the model: this host has no {str(header)!r}; install the headers of Python "
            "(Debian: python3-dev), or set compile_blocks = false",
            code="trainer.no_headers",
        )
