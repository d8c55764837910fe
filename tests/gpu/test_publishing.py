"""Weights that leave a device are the float32 masters, rounded, bit for bit, version after version."""

import numpy as np
import pytest
import torch

from astraflow.models.precision import bits_of
from astraflow.trainer.backends.local import LocalBackend
from astraflow.weights.publish.staging_buffers import StagedVersion, tensor_views
from tests.trainer.backends.test_local import batch, local

pytestmark = pytest.mark.gpu


def test_published_bits_are_the_rounded_masters(device: torch.device) -> None:
    backend = local(device=str(device))
    assert isinstance(backend, LocalBackend)
    staged = StagedVersion.private(backend.published_shapes)  # the same buffer for each version, pinned once

    buffers = []
    for step in (1, 2, 3):
        backend.step(batch(step))
        backend.snapshot(staged)
        views = tensor_views(staged.specs, staged.buffer.bits)
        for name, (dtype, _) in backend.published_shapes.items():
            np.testing.assert_array_equal(views[name], bits_of(backend._engine.weights()[name], dtype))
        buffers.append(staged.buffer.bits.tobytes())

    assert len(set(buffers)) == len(buffers)


def test_the_probe_of_a_device_is_that_of_a_cpu(device: torch.device) -> None:
    probes = []
    for kind in (str(device), "cpu"):
        backend = local(device=kind)
        backend.step(batch(1))
        probe = backend.probe()
        assert probe is not None
        probes.append(probe)

    bound = 1e-5 if device.type == "cpu" else 0.1
    assert probes[0].tokens == probes[1].tokens
    actual, expected = (np.frombuffer(probe.logprobs, dtype="<f4") for probe in probes)
    assert float(np.abs(actual - expected).max()) <= bound
