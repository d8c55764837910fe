"""Launcher and worker extension inside vLLM's environment.

    ASTRAFLOW_SERVER_KEY=<key> python astraflow_vllm.py <arguments of vllm.entrypoints.openai.api_server>

The extension (`--worker-extension-cls astraflow_vllm.WeightLoader`) runs in every worker and is called through
`POST /collective_rpc`; `self` is the worker.

vLLM's core and workers wait for each other by yielding the processor in a loop for up to a second, which takes half a
core from the other processes of a small host. With ASTRAFLOW_SLEEPING_WAITS they sleep between two looks. vLLM's waits
without a loop are not used: they miss notifications in quick succession, and then last for seconds (0.32.0).

On a CPU, vLLM starts its processes with `spawn`, which runs the module level of this file again in each of them.
"""

import functools
import os
import runpy
import time

from astraflow_weight_mapping import CannotPatch, WeightMapping
from safetensors.torch import load_file

WAIT_S = 0.0002
"""Sleep of a process between two looks. A step of a small model on a CPU takes 10 ms. Seconds."""

if os.environ.get("ASTRAFLOW_SLEEPING_WAITS"):
    from vllm.distributed.device_communicators import shm_broadcast

    shm_broadcast.sched_yield = functools.partial(time.sleep, WAIT_S)


class WeightLoader:
    """Loads and patches the weights of a worker from shared memory."""

    def astraflow_load(self, path: str, learn: str) -> int:
        """Replaces all weights by those of a safetensors file. learn: `1` to prepare later patches."""
        runner = self.model_runner
        if learn == "1" and self.device.type != "cpu":
            self.astraflow_weight_mapping = WeightMapping()
            self.astraflow_weight_mapping.load(
                path,
                lambda tensors: runner.reload_weights(weights_iterator=iter(tensors)),
                is_sharded=self.vllm_config.parallel_config.world_size > 1,
            )
        else:
            runner.reload_weights(weights_iterator=iter(load_file(path).items()))
        if self.device.type == "cpu":
            _pack_tied_head(runner.model)
        return 0

    def astraflow_patch(self, path: str) -> int:
        """Writes the changes of a patch file; returns the number of elements."""
        mapping = getattr(self, "astraflow_weight_mapping", None)
        if mapping is None:
            raise CannotPatch("cannot patch: no weight mapping is known; load a whole version first")
        return mapping.patch(path)


def _pack_tied_head(model: object) -> None:
    """Packs a head that shares its weights with the embedding again: a reload on a CPU leaves its packed copy old."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    layers = (getattr(model, "lm_head", None), getattr(getattr(model, "model", None), "embed_tokens", None))
    for layer in {id(layer): layer for layer in layers if hasattr(layer, "cpu_linear")}.values():
        dispatch_cpu_unquantized_gemm(layer, remove_weight=False)


if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
