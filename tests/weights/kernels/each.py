"""Both ways to code blocks, for tests that any of them must pass."""

import pytest

from astraflow.weights.kernels.compiled import CompiledKernels
from astraflow.weights.kernels.reference import ReferenceKernels

REFERENCE, COMPILED = ReferenceKernels(), CompiledKernels()
WITH_EACH = pytest.mark.parametrize("kernels", [REFERENCE, COMPILED], ids=["reference", "compiled"])
