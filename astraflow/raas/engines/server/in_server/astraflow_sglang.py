"""Launcher and weight loader inside SGLang's environment.

    ASTRAFLOW_SERVER_KEY=<key> python astraflow_sglang.py <arguments of sglang.launch_server>

All routes need the key (`astraflow_key.py`).

The custom weight loader `astraflow_sglang.apply` (`--custom-weight-loader`) takes one tensor whose name is the payload:
`load:PATH` loads a safetensors file and learns the weight mapping, `patch:PATH` writes changed elements.
The route `POST /astraflow/update` calls it between the begin and the end of an update, and resumes generation. The
server generates nothing during these steps, which are four requests of SGLang's own, each after the answer to the last.

SGLang starts its processes with `spawn`, which runs the module level of this file again in each of them: on a CPU,
operators of torchvision's CUDA build must be declared in all of them, and memory cannot be pinned.
"""

import asyncio
import gc
import os
import pickle
from collections.abc import Callable
from functools import cache
from typing import Any

import astraflow_cpu_attention
import torch
from astraflow_key import RequiresKey
from astraflow_weight_mapping import CannotPatch, WeightMapping

if not hasattr(torch.ops.torchvision, "nms"):
    _OPERATORS = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _without_pinning(create: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def created(*args: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return create(*args, **options)

    return created


if os.environ.get("ASTRAFLOW_WITHOUT_PINNING"):  # SGLang's adapter layers pin memory also without a device
    for _name in ("tensor", "empty", "zeros"):
        setattr(torch, _name, _without_pinning(getattr(torch, _name)))
    torch.Tensor.pin_memory = lambda tensor: tensor

_WEIGHT_MAPPING = WeightMapping()


def apply(model: torch.nn.Module, named: list[tuple[str, torch.Tensor]]) -> None:
    """Loads or patches the weights of one rank."""
    action, _, path = named[0][0].partition(":")
    _prepare_process()
    if action == "load":
        is_sharded = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
        _WEIGHT_MAPPING.load(path, model.load_weights, is_sharded=is_sharded)
    elif action == "patch":
        _WEIGHT_MAPPING.patch(path)
    else:
        raise CannotPatch(f"cannot apply {action!r}: known actions are load and patch")


@cache
def _prepare_process() -> None:
    """Prepares the process that computes, once, before its first weights.

    On a CPU, SGLang collects garbage at each flush of its cache, twice in an update: 0.3 s for the millions of objects
    that its imports and the model made. They live as long as the process, so the collector leaves them out.
    """
    astraflow_cpu_attention.install()
    gc.collect()
    gc.freeze()


def main() -> None:
    """Runs the server until it is stopped."""
    import sys

    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    _extend_app()
    run_server(prepare_server_args(sys.argv[1:]))


def _extend_app() -> None:
    """Adds the route that updates weights, and demands the key on every route."""
    from fastapi import Request
    from fastapi.responses import JSONResponse
    from sglang.srt.entrypoints.http_server import app, get_global_state
    from sglang.srt.managers.io_struct import (
        BeginWeightUpdateReqInput,
        ContinueGenerationReqInput,
        EndWeightUpdateReqInput,
        UpdateWeightsFromTensorReqInput,
    )

    app.add_middleware(RequiresKey)

    @app.post("/astraflow/update")
    async def update(request: Request) -> JSONResponse:
        """Applies `payload` to the weights of a paused server, names them `version`, discards the cache, and, if
        `resumes`, generates again.

        The pickle is a constant with the payload in it, and SGLang unpickles it with an allow-list of types.
        """
        body = await request.json()
        manager = get_global_state().tokenizer_manager
        loaded = UpdateWeightsFromTensorReqInput(
            serialized_named_tensors=[pickle.dumps([(body["payload"], torch.zeros(1))])],
            load_format="astraflow_sglang.apply",
            weight_version=body["version"],
        )
        begun, (is_loaded, message), ended = await asyncio.gather(  # sent in this order, over one socket
            manager.begin_weight_update_communicator(BeginWeightUpdateReqInput()),
            manager.update_weights_from_tensor(loaded),
            manager.end_weight_update_communicator(EndWeightUpdateReqInput()),
        )
        is_done = is_loaded and all(answer.success for answer in (*begun, *ended))
        if is_done and body["resumes"]:
            await manager.continue_generation(ContinueGenerationReqInput(torch_empty_cache=False))
        return JSONResponse({"success": is_done, "message": message}, status_code=200 if is_done else 400)


if __name__ == "__main__":
    main()
