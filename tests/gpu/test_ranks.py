"""One rank of the `fsdp` backend, over nccl on a GPU and gloo on a CPU, trains as the local backend does."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from astraflow.contract.errors import InvalidInput
from astraflow.trainer.backends.fsdp import FsdpBackend
from tests.errors import raises_code
from tests.snapshots import snapshot_of
from tests.trainer.backends.test_fsdp import LEARNING_RATE, digest, fsdp
from tests.trainer.backends.test_local import batch, local

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch itself, where the compiler is imported
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),  # of torch's compiler, which reads it
]

BOUND = {"cpu": 1e-4, "cuda": 2e-2}
"""Largest accepted relative difference of loss, norm and entropy: float32 on a CPU, bfloat16 on a GPU."""
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gradients summed after each pack": {"gradient_sync": "each_pack", "micro_batch_tokens": 40},
    "norms computed again": {"recompute": "selective"},
    "compiled": {"compile_blocks": True},
    "compiled, all computed again": {"compile_blocks": True, "recompute": "full"},
    "bfloat16 moments": {"moments_dtype": "bfloat16"},
    "8-bit moments": {"moments_dtype": "uint8"},
    "offloaded": {"cpu_offload": True},
}


@contextmanager
def rank_of(device: torch.device, **options: Any) -> Iterator[FsdpBackend]:
    backend = fsdp(algorithm={"max_mismatch": None}, ranks=1, device=device.type, **options)
    try:
        yield backend
    finally:
        backend.close()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_a_rank_trains_as_the_local_backend(device: torch.device, options: dict[str, Any], tmp_path: Path) -> None:
    if options.get("cpu_offload") and device.type == "cpu":
        with raises_code(InvalidInput, "trainer.offload_without_gpu"):
            fsdp(ranks=1, device="cpu", **options)
        return
    moments = options.get("moments_dtype", "float32")
    single = local(learning_rate=LEARNING_RATE, device=str(device), moments_dtype=moments)
    single.capture().write(tmp_path)
    with rank_of(device, **options) as backend:
        backend.load(tmp_path)
        assert digest(snapshot_of(backend)) == digest(snapshot_of(single))
        for step in (1, 2, 3):
            expected_metrics, actual_metrics = single.step(batch(step)), backend.step(batch(step))
            for name in ("loss", "grad_norm", "entropy"):
                assert actual_metrics[name] == pytest.approx(expected_metrics[name], rel=BOUND[device.type], abs=1e-3)


def test_a_checkpoint_of_a_rank_goes_on_bit_for_bit(device: torch.device, tmp_path: Path) -> None:
    with rank_of(device) as backend:
        backend.step(batch(1))
        backend.capture().write(tmp_path)
        digests = []
        for _ in range(2):
            backend.load(tmp_path)
            backend.step(batch(2))
            digests.append(digest(snapshot_of(backend)))

    assert digests[0] == digests[1]
