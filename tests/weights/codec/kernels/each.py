"""Both implementations of the block kernels, for tests that each must pass."""

import pytest

from astraflow.weights.codec.kernels.compiled import CompiledKernels
from astraflow.weights.codec.kernels.reference import ReferenceKernels

REFERENCE, COMPILED = ReferenceKernels(), CompiledKernels()
WITH_EACH = pytest.mark.parametrize("kernels", [REFERENCE, COMPILED], ids=["reference", "compiled"])
