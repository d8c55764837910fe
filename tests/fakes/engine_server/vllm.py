"""vLLM's routes, as AstraFlow uses them (0.32.0)."""

import argparse
import asyncio
import os
import time
import uuid
from pathlib import Path
from typing import Any

from tests.fakes.engine_server import token_model
from tests.fakes.engine_server.frontend import Call, CoreClient, Frontend, Handler, HttpError
from tests.fakes.engine_server.weights import read_tensors

_PREFIX = "generate-tokens-"


def parse(arguments: list[str]) -> argparse.Namespace:
    """Returns the options of a start; exits for an unknown one. The first argument is the launcher."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("program")
    parser.add_argument("--model", required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--load-format", choices=["dummy"], required=True)
    parser.add_argument("--host", choices=["127.0.0.1"], required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16", "float16"], required=True)
    parser.add_argument("--generation-config", choices=["vllm"], required=True)
    parser.add_argument("--enable-scale-out", action="store_true")
    parser.add_argument("--disable-uvicorn-access-log", action="store_true")
    parser.add_argument("--worker-extension-cls", choices=["astraflow_vllm.WeightLoader"], required=True)
    parser.add_argument("--logprobs-mode", choices=["processed_logprobs"], required=True)
    parser.add_argument("--max-logprobs", type=int, default=20)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--pipeline-parallel-size", type=int, default=1)
    parser.add_argument("--enable-expert-parallel", action="store_true")
    parser.add_argument("--max-model-len", type=int, default=512, dest="context_tokens")
    parser.add_argument("--max-num-seqs", type=int, default=64, dest="max_running")
    parser.add_argument("--enable-return-routed-experts", action="store_true")
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--max-lora-rank", type=int)
    parser.add_argument("--mamba-ssm-cache-dtype")
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--middleware")
    parser.add_argument("--quantization", choices=["fp8_per_channel"])
    parser.add_argument("--gpu-memory-utilization", type=float)
    options = parser.parse_args(arguments)
    if not options.program.endswith("in_server/astraflow_vllm.py"):
        parser.error(f"unknown program {options.program}")
    return options


def frontend(core: CoreClient, options: argparse.Namespace, faults: Any) -> Frontend:
    """Returns the server. The key guards all routes, by the middleware of the launcher."""
    has_adapters = options.enable_lora and os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") == "1"
    server = _Server(core, options.max_logprobs, is_packed="--enforce-eager" in options.raw, has_adapters=has_adapters)
    return Frontend(
        server.routes(is_scale_out=options.enable_scale_out),
        core,
        faults,
        is_open=lambda path: options.middleware != "astraflow_key.RequiresKey",
        key=os.environ["ASTRAFLOW_SERVER_KEY"],
        dies_silently=False,
    )


class _Server:
    def __init__(self, core: CoreClient, max_logprobs: int, *, is_packed: bool, has_adapters: bool) -> None:
        """is_packed: the weights are packed, as on a CPU, and cannot be patched."""
        self._core = core
        self._max_logprobs = max_logprobs
        self._is_packed = is_packed
        self._has_mapping = False
        self._has_adapters = has_adapters
        self._adapters: set[str] = set()

    def routes(self, *, is_scale_out: bool) -> dict[tuple[str, str], Handler]:
        """Returns the handlers."""
        routes: dict[tuple[str, str], Handler] = {("GET", "/metrics"): self._metrics}
        if is_scale_out:
            routes[("POST", "/inference/v1/generate")] = self._generate
        if os.environ.get("VLLM_SERVER_DEV_MODE") == "1":
            routes |= {
                ("GET", "/is_paused"): self._is_paused,
                ("POST", "/pause"): self._pause,
                ("POST", "/resume"): self._resume,
                ("POST", "/abort_requests"): self._abort,
                ("POST", "/collective_rpc"): self._rpc,
                ("POST", "/update_weight_version"): self._set_version,
                ("POST", "/weight_checker"): self._check,
            }
        if self._has_adapters:
            routes[("POST", "/v1/load_lora_adapter")] = self._load_adapter
            routes[("POST", "/v1/unload_lora_adapter")] = self._unload_adapter
        return routes

    async def _metrics(self, call: Call) -> str:
        gauges = self._core.gauges
        values = {
            "num_requests_running": gauges["running"],
            "num_requests_waiting": gauges["waiting"],
            "kv_cache_usage_perc": gauges["cache"],
            "generation_tokens_total": gauges["tokens"],
            "prompt_tokens_total": gauges["prompts"],
            "prefix_cache_hits_total": gauges["cached"],
        }
        labels = '{engine="0",model_name="policy"}'
        return "".join(f"# TYPE vllm:{name} gauge\nvllm:{name}{labels} {value}\n" for name, value in values.items())

    async def _generate(self, call: Call) -> Any:
        body = call.body
        sampling, tokens = body["sampling_params"], body["token_ids"]
        request_id = _PREFIX + (body.get("request_id") or uuid.uuid4().hex)
        adapter = body["model"] if body["model"] in self._adapters else ""
        if not adapter and body["model"] != "policy":
            raise HttpError(404, {"error": {"message": f"The model `{body['model']}` does not exist.", "code": 404}})
        prompt_logprobs = None
        if "prompt_logprobs" in sampling:
            scored = await self._core.call("score", tokens=tokens, scored_from=1, adapter=adapter)
            prompt_logprobs = [
                None,
                *(
                    {str(token): {"logprob": score, "rank": 1, "decoded_token": None}}
                    for token, score in zip(tokens[1:], scored["logprobs"], strict=True)
                ),
            ]
        if (count := sampling.get("logprobs") or 0) > self._max_logprobs:
            message = f"Requested sample logprobs of {count}, which is greater than max allowed: {self._max_logprobs}"
            raise HttpError(400, {"error": {"message": message, "type": "BadRequestError", "code": 400}})
        structure = sampling.get("structured_outputs") or {}
        options = {
            "request_id": request_id,
            "prompt": tokens,
            "adapter": adapter,
            "max_tokens": sampling["max_tokens"],
            "temperature": sampling.get("temperature", 1.0),
            "top_p": sampling.get("top_p", 1.0),
            "top_k": sampling.get("top_k", 0),
            "min_p": sampling.get("min_p", 0.0),
            "stop_tokens": sampling.get("stop_token_ids", []),
            "stop_strings": sampling.get("stop", []),
            "seed": sampling.get("seed"),
            "regex": structure.get("regex", ""),
            "json_schema": structure.get("json", ""),
            "records": "" if not count else "kept" if sampling["temperature"] else "all",
        }
        try:
            results = await asyncio.gather(
                *(self._core.call("generate", **options) for _ in range(sampling.get("n", 1)))
            )
        except HttpError as problem:
            error = {"message": str(problem.content), "type": "BadRequestError", "param": None, "code": problem.status}
            raise HttpError(problem.status, {"error": error}) from problem
        completion_tokens = sum(len(result["tokens"]) for result in results)
        return {
            "request_id": request_id,
            "model": body["model"],
            "created": int(time.time()),
            "usage": {
                "prompt_tokens": len(tokens),
                "total_tokens": len(tokens) + completion_tokens,
                "completion_tokens": completion_tokens,
                "prompt_tokens_details": None,
                "completion_tokens_details": None,
            },
            "prompt_logprobs": prompt_logprobs,
            "prompt_token_id_logprobs": None,
            "prompt_token_ids": None,
            "mm_placeholders": None,
            "metrics": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "output_mode": "tokens",
            "choices": [_choice(index, result, count=sampling.get("logprobs")) for index, result in enumerate(results)],
        }

    async def _is_paused(self, call: Call) -> Any:
        return {"is_paused": await self._core.call("is_paused")}

    async def _pause(self, call: Call) -> Any:
        mode = call.query.get("mode", "abort")
        clears = call.query.get("clear_cache", "true") == "true"
        if mode == "keep":
            mode = "retract" if clears else "in_place"
        await self._core.call("pause", mode=mode)
        if clears:
            await self._core.call("flush", discard_running=True)
        return {"status": "paused"}

    async def _resume(self, call: Call) -> Any:
        await self._core.call("resume")
        return {"status": "resumed"}

    async def _abort(self, call: Call) -> Any:
        """Counts the ids that it was given, known or not."""
        ids = call.body["request_ids"]
        await self._core.call("abort", ids=ids)
        return {"status": "aborted", "aborted": len(ids)}

    async def _rpc(self, call: Call) -> Any:
        method, arguments = call.body["method"], call.body["kwargs"]
        if not all(isinstance(value, str) for value in arguments.values()):
            raise HttpError(500, {"error": "arguments must be strings"})
        if method == "astraflow_load":
            await self._core.call("load", path=arguments["path"], version=None)
            self._has_mapping = arguments["learn"] == "1" and not self._is_packed
            return {"results": ["0"]}
        if method == "astraflow_patch":
            if not self._has_mapping:
                raise HttpError(500, "Internal Server Error")
            return {"results": [str(await self._core.call("patch", path=arguments["path"], version=None))]}
        raise HttpError(500, "Internal Server Error")

    async def _set_version(self, call: Call) -> Any:
        version = call.body["new_version"]
        await self._core.call("version", version=version)
        return {"success": True, "new_version": version}

    async def _load_adapter(self, call: Call) -> str:
        name = call.body["lora_name"]
        tensors = read_tensors(Path(call.body["lora_path"]) / "adapter_model.safetensors")
        await self._core.call(
            "add_adapter", adapter=name, tensors={key: bits.hex() for key, (_, bits) in tensors.items()}
        )
        self._adapters.add(name)
        return f"Success: LoRA adapter '{name}' added successfully."

    async def _unload_adapter(self, call: Call) -> str:
        name = call.body["lora_name"]
        await self._core.call("remove_adapter", adapter=name)
        self._adapters.remove(name)
        return f"Success: LoRA adapter '{name}' removed successfully."

    async def _check(self, call: Call) -> Any:
        return {"checksums": await self._core.call("checksum")}


def _choice(index: int, result: dict[str, Any], *, count: int | None) -> dict[str, Any]:
    """Returns one choice. count: candidates per token; None without logprobs."""
    content = [
        {"token_id": token, "logprob": logprob, "rank": 1, "top_logprobs": [_entry(token, logprob)]}
        for token, logprob in zip(result["tokens"], result["logprobs"], strict=True)
    ]
    if count:
        for entry, candidates in zip(content, result["candidates"], strict=True):
            entry["top_logprobs"] = _candidates(entry["token_id"], entry["logprob"], candidates, count)
    return {
        "index": index,
        "finish_reason": result["finish"],
        "stop_reason": result["stop"],
        "token_ids": result["tokens"],
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": result["spans"] or None,
        "logprobs": {"content": content} if count is not None else None,
    }


def _candidates(token: int, logprob: float, candidates: list[list[float]], count: int) -> list[dict[str, Any]]:
    """Returns the sampled token, then the most likely ones by rank, without it, at most `count` in all. Tokens that
    cannot be sampled have the floor of logprobs."""
    ids = {int(candidate) for candidate, _ in candidates}
    rows = [*candidates, *([other, -9999.0] for other in range(token_model.VOCAB) if other not in ids)][:count]
    return [_entry(token, logprob), *(_entry(int(other), value) for other, value in rows if other != token)][:count]


def _entry(token: int, logprob: float) -> dict[str, Any]:
    return {"token_id": token, "logprob": logprob, "rank": 1}
