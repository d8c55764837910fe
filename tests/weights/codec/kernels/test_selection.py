"""Selection of kernels: small versions never wait for a compiler, large ones never depend on it."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from astraflow.weights.codec.kernels import compiled, selection
from astraflow.weights.codec.kernels.compiled import CompiledKernels
from astraflow.weights.codec.kernels.reference import ReferenceKernels
from astraflow.weights.codec.kernels.selection import COMPILED_MIN_BYTES, kernels_for


@pytest.fixture(autouse=True)
def reset_selection() -> Iterator[None]:
    selection._compiled_or_reference.cache_clear()
    yield
    selection._compiled_or_reference.cache_clear()


@pytest.mark.long
def test_numpy_is_used_for_small_versions_and_compiled_kernels_for_large_ones() -> None:
    assert isinstance(kernels_for(COMPILED_MIN_BYTES - 1), ReferenceKernels)
    assert isinstance(kernels_for(COMPILED_MIN_BYTES), CompiledKernels)


def test_without_the_extra_numpy_is_used_and_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with capture_logs() as logs:
        assert isinstance(kernels_for(COMPILED_MIN_BYTES), ReferenceKernels)
        assert isinstance(kernels_for(COMPILED_MIN_BYTES), ReferenceKernels)

    assert [(entry["event"], "astraflow[compiled]" in entry["hint"]) for entry in logs] == [
        ("numpy_codec_selected", True)
    ]


@pytest.mark.parametrize("problem", [ImportError("numba needs another numpy"), OSError("no space left")], ids=repr)
def test_numpy_is_used_when_compiling_fails(monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    def fail() -> CompiledKernels:
        raise problem

    monkeypatch.setattr(compiled, "CompiledKernels", fail)
    with capture_logs() as logs:
        assert isinstance(kernels_for(COMPILED_MIN_BYTES), ReferenceKernels)

    assert [(entry["event"], entry["problem"]) for entry in logs] == [("codec_not_compiled", str(problem))]


def test_compiled_kernels_that_differ_from_numpy_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(CompiledKernels):
        def encode_changes(self, *arguments: object) -> object:  # type: ignore[override]
            coded = CompiledKernels.encode_changes(self, *arguments)  # type: ignore[arg-type]
            object.__setattr__(coded, "directions", bytes(len(coded.directions)))
            return coded

    monkeypatch.setattr(compiled, "CompiledKernels", Wrong)
    with capture_logs() as logs:
        assert isinstance(kernels_for(COMPILED_MIN_BYTES), ReferenceKernels)

    assert "numpy" in logs[0]["problem"]


_ALONE = """
import json, sys
import numpy as np
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype
from astraflow.weights.publish import publisher
from astraflow.weights.transfer import puller
from astraflow.weights import service
from astraflow.weights.codec.delta import apply_delta, encode_delta
from astraflow.weights.tensors import build_layout

def version(number, size):
    bits = np.arange(size, dtype="<u4").astype("<u2") * 16 + np.uint16(number)
    return build_layout({"w": (Dtype.BFLOAT16, (size,), bits)}, policy=PolicyId("p"), version=Version(number))

found = []
for size in (1000, 9_000_000):
    base, target = version(0, size), version(1, size)
    data = encode_delta(*base, *target).data
    buffer = base[1].copy()
    apply_delta(data, target[0], buffer)
    found.append([bool((buffer == target[1]).all()), "numba" in sys.modules])
print(json.dumps(found))
"""


_NOWHERE = """
from numba.core import caching
assert caching.CacheImpl._locator_classes
caching.CacheImpl._locator_classes = []
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "before",
    ["", pytest.param(_NOWHERE, marks=pytest.mark.long)],  # compiles everything anew: 19 s of a core
    ids=["", "nowhere to keep machine code"],
)
def test_numba_is_imported_for_large_versions_only(before: str) -> None:
    ran = subprocess.run([sys.executable, "-c", before + _ALONE], capture_output=True, text=True, timeout=110)

    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == [[True, bool(before)], [True, True]]
    assert "codec_not_compiled" not in ran.stdout + ran.stderr
