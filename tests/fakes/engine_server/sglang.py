"""SGLang's routes, as AstraFlow uses them (0.5.23)."""

import argparse
import asyncio
import base64
import os
import time
from array import array
from typing import Any

from tests.fakes.engine_server.frontend import Call, CoreClient, Frontend, Handler, HttpError
from tests.fakes.engine_server.pickles import tensor_bits

_LOADER = "astraflow_sglang.apply"


def parse(arguments: list[str]) -> argparse.Namespace:
    """Returns the options of a start; exits for an unknown one. The first argument is the launcher."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("program")
    parser.add_argument("--model-path", required=True, dest="model")
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--load-format", choices=["dummy"], required=True)
    parser.add_argument("--host", choices=["127.0.0.1"], required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16", "float16"], required=True)
    parser.add_argument("--custom-weight-loader", choices=[_LOADER], required=True)
    parser.add_argument("--skip-server-warmup", action="store_true")
    parser.add_argument("--log-level-http")
    parser.add_argument("--enable-metrics", action="store_true", required=True)
    parser.add_argument("--tp-size", type=int, default=1)
    parser.add_argument("--pp-size", type=int, default=1)
    parser.add_argument("--ep-size", type=int, default=1)
    parser.add_argument("--context-length", type=int, default=512, dest="context_tokens")
    parser.add_argument("--max-running-requests", type=int, default=64, dest="max_running")
    parser.add_argument("--enable-return-routed-experts", action="store_true")
    parser.add_argument("--enable-deterministic-inference", action="store_true")
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--max-lora-rank", type=int)
    parser.add_argument("--lora-target-modules", choices=["all"])
    parser.add_argument("--lora-backend", choices=["torch_native"])
    parser.add_argument("--device", choices=["cpu"])
    parser.add_argument("--attention-backend", choices=["torch_native"])
    parser.add_argument("--sampling-backend", choices=["pytorch"])
    parser.add_argument("--grammar-backend", choices=["xgrammar"])
    parser.add_argument("--disable-overlap-schedule", action="store_true")
    parser.add_argument("--mem-fraction-static", type=float)
    parser.add_argument("--max-total-tokens", type=int)
    parser.add_argument("--sleep-on-idle", action="store_true")
    parser.add_argument("--watchdog-timeout", type=float)
    options = parser.parse_args(arguments)
    if not options.program.endswith("in_server/astraflow_sglang.py"):
        parser.error(f"unknown program {options.program}")
    return options


def frontend(core: CoreClient, options: argparse.Namespace, faults: Any) -> Frontend:
    """Returns the server."""
    server = _Server(core, options.model, has_adapters=options.enable_lora)
    # The key guards all routes, by the middleware of the launcher.
    return Frontend(
        server.routes(),
        core,
        faults,
        is_open=lambda path: False,
        key=os.environ["ASTRAFLOW_SERVER_KEY"],
        dies_silently=True,
    )


class _Server:
    def __init__(self, core: CoreClient, model: str, *, has_adapters: bool) -> None:
        self._core = core
        self._has_adapters = has_adapters
        self._adapters: dict[str, Any] = {}
        """Path of each loaded adapter, as the answers show it."""
        self._model = model
        self._version = "default"
        self._pause_mode = ""

    def routes(self) -> dict[tuple[str, str], Handler]:
        """Returns the handlers."""
        routes: dict[tuple[str, str], Handler] = {
            ("GET", "/model_info"): self._model_info,
            ("GET", "/metrics"): self._metrics,
            ("POST", "/generate"): self._generate,
            ("POST", "/abort_request"): self._abort,
            ("POST", "/pause_generation"): self._pause,
            ("POST", "/flush_cache"): self._flush,
            ("POST", "/continue_generation"): self._resume,
            ("POST", "/update_weights_from_disk"): self._from_disk,
            ("POST", "/astraflow/update"): self._by_loader,
            ("POST", "/weights_checker"): self._check,
            ("POST", "/update_weight_version"): self._set_version,
        }
        if self._has_adapters:
            routes |= {
                ("POST", "/load_lora_adapter_from_tensors"): self._load_adapter,
                ("POST", "/unload_lora_adapter"): self._unload_adapter,
            }
        return routes

    async def _model_info(self, call: Call) -> Any:
        return {
            "model_path": self._model,
            "served_model_name": "policy",
            "tokenizer_path": self._model,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": self._version,
            "load_format": "dummy",
            "reasoning_parser": None,
            "tool_call_parser": None,
            "disaggregation_mode": "null",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": "qwen3",
            "architectures": ["Qwen3ForCausalLM"],
            "embedding": _EMBEDDING,
        }

    async def _metrics(self, call: Call) -> str:
        gauges = self._core.gauges
        labels = '{engine_type="unified",model_name="policy",pp_rank="0",tp_rank="0"}'
        values = {
            "num_running_reqs": gauges["running"],
            "num_queue_reqs": gauges["waiting"],
            "token_usage": gauges["cache"],
            "generation_tokens_total": gauges["tokens"],
            "prompt_tokens_total": gauges["prompts"],
            "cached_tokens_total": gauges["cached"],
        }
        return "".join(f"# TYPE sglang:{name} gauge\nsglang:{name}{labels} {value}\n" for name, value in values.items())

    async def _generate(self, call: Call) -> Any:
        if not isinstance(call.body.get("rid"), list):
            return await self._generate_one(call.body)
        members = zip(call.body["rid"], call.body["input_ids"], strict=True)
        bodies = [{**call.body, "rid": request_id, "input_ids": tokens} for request_id, tokens in members]
        return await asyncio.gather(*(self._generate_one(body) for body in bodies))

    async def _generate_one(self, body: dict[str, Any]) -> Any:
        began_at = time.time()
        sampling = body["sampling_params"]
        tokens = body["input_ids"]
        if sampling["max_new_tokens"] == 0:
            return await self._score(tokens, body["logprob_start_len"], began_at, adapter=body.get("lora_path") or "")
        stop_tokens = [] if sampling.get("ignore_eos") else sampling.get("stop_token_ids", [])
        result = await self._core.call(
            "generate",
            request_id=body["rid"],
            prompt=tokens,
            adapter=body.get("lora_path") or "",
            max_tokens=sampling["max_new_tokens"],
            temperature=sampling["temperature"],
            top_p=sampling["top_p"],
            top_k=max(0, sampling["top_k"]),
            min_p=sampling["min_p"],
            stop_tokens=stop_tokens,
            stop_strings=sampling.get("stop", []),
            seed=sampling.get("sampling_seed"),
            regex=sampling.get("regex", ""),
            json_schema=sampling.get("json_schema", ""),
            records="kept" if body.get("return_sampling_mask") else "all" if body.get("top_logprobs_num") else "",
        )
        facts = self._facts(body["rid"], tokens, result["tokens"], began_at, cached=result["cached"])
        if result["finish"] == "length":
            facts["finish_reason"] = {"type": "length", "length": len(result["tokens"])}
        elif result["finish"] == "stop":
            facts["finish_reason"] = {"type": "stop", "matched": result["stop"]}
        else:
            facts["finish_reason"] = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
        facts["output_token_logprobs"] = [
            [logprob, token, None] for logprob, token in zip(result["logprobs"], result["tokens"], strict=True)
        ]
        facts["output_token_logprobs_length"] = len(result["tokens"])
        if body.get("return_sampling_mask"):
            if not 1 < sampling["top_k"] <= 4096 and sampling["temperature"]:
                raise HttpError(400, {"error": {"message": "return_sampling_mask requires finite 1 < top_k <= 4096"}})
            facts |= _sampling_mask(result["candidates"])
        elif count := body.get("top_logprobs_num", 0):
            facts |= _flat_candidates(result["candidates"], count)
        facts["decode_throughput"] = len(result["tokens"]) / facts["e2e_latency"]
        if result["tokens"]:  # a request that ends in the queue has no spans
            facts["weight_versions"] = result["spans"]
        return {"text": result["text"], "output_ids": result["tokens"], "meta_info": facts}

    async def _score(self, tokens: list[int], start: int, began_at: float, *, adapter: str) -> Any:
        # Logprobs begin one after the start, because the first token has no prefix.
        scored = await self._core.call("score", tokens=tokens, scored_from=start + 1, adapter=adapter)
        facts = self._facts("score", tokens, [], began_at, cached=scored["cached"])
        facts["finish_reason"] = {"type": "length", "length": 0}
        facts["input_token_logprobs"] = [
            [None, tokens[start], None],
            *([score, token, None] for score, token in zip(scored["logprobs"], tokens[start + 1 :], strict=True)),
        ]
        facts |= {"output_token_logprobs": [], "output_token_logprobs_length": 0}
        facts["weight_versions"] = [{"version": self._version, "start": 0, "end": 0}]
        return {"text": "", "output_ids": [], "meta_info": facts}

    def _facts(
        self, request_id: str, prompt: list[int], tokens: list[int], began_at: float, *, cached: int
    ) -> dict[str, Any]:
        ended_at = time.time()
        return {
            "id": request_id,
            "prompt_tokens": len(prompt),
            "completion_tokens": len(tokens),
            "reasoning_tokens": 0,
            "cached_tokens": cached,
            "cached_tokens_details": {"device": cached, "host": 0} if cached else None,
            "input_token_logprobs": [],
            "weight_version": self._version,
            "num_retractions": 0,
            "dp_rank": None,
            "e2e_latency": ended_at - began_at,
            "first_token_latency": ended_at - began_at,
            "queue_time": 0.0,
            "storage_prefetch_wait": 0.0,
            "storage_staging_wait": 0.0,
            "request_received_ts": began_at,
            "api_server_dispatch_finish_ts": began_at,
            "forward_entry_time": began_at,
            "prefill_finished_time": began_at,
            "request_finished_ts": ended_at,
            "response_sent_to_client_ts": ended_at,
        }

    async def _abort(self, call: Call) -> None:
        ids = None if call.body.get("abort_all") else [call.body["rid"]]
        await self._core.call("abort", ids=ids)

    async def _pause(self, call: Call) -> Any:
        self._pause_mode = call.body.get("mode", "abort")
        await self._core.call("pause", mode=self._pause_mode)
        return {"message": "Generation paused successfully.", "status": "ok"}

    async def _flush(self, call: Call) -> str:
        if not await self._core.call("flush", discard_running=False):
            raise HttpError(400, "Flush cache failed.")
        return "Cache flushed."

    async def _resume(self, call: Call) -> Any:
        if call.body is None:
            raise HttpError(422, {"detail": "body required"})
        self._pause_mode = ""
        await self._core.call("resume")
        return {"message": "Generation continued successfully.", "status": "ok"}

    async def _from_disk(self, call: Call) -> Any:
        body = call.body
        if body.get("load_format") == "dummy" or "load_format" not in body:
            return {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
        await self._update("load", f"{body['model_path']}/model.safetensors", body)
        return {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}

    async def _by_loader(self, call: Call) -> Any:
        action, _, path = call.body["payload"].partition(":")
        await self._update(action, path, {"weight_version": call.body["version"]})
        if call.body["resumes"]:
            await self._resume(call)
        return {"success": True, "message": f"Success Weight version updated to {self._version}."}

    async def _update(self, action: str, path: str, body: dict[str, Any]) -> None:
        try:
            await self._core.call(action, path=path, version=body.get("weight_version"))
        except HttpError as problem:
            raise HttpError(400, {"success": False, "message": str(problem.content)}) from problem
        self._version = body.get("weight_version") or self._version
        if body.get("flush_cache", True) and not await self._core.call("flush", discard_running=False):
            # The weights and the version have changed nevertheless.
            raise HttpError(400, {"success": False, "message": "Cache flush failed after updating weights"})

    async def _set_version(self, call: Call) -> Any:
        self._version = call.body["new_version"]
        if call.body.get("abort_all_requests", True):
            await self._core.call("abort", ids=None)
        await self._core.call("version", version=self._version)
        return {
            "success": True,
            "message": f"Weight version updated to {self._version}",
            "new_version": self._version,
        }

    async def _load_adapter(self, call: Call) -> Any:
        name = call.body["lora_name"]
        tensors = tensor_bits(call.body["serialized_named_tensors"][0])
        await self._core.call("add_adapter", adapter=name, tensors={key: bits.hex() for key, bits in tensors.items()})
        self._adapters[name] = "__tensor__"
        return self._adapter_answer()

    async def _unload_adapter(self, call: Call) -> Any:
        await self._core.call("remove_adapter", adapter=call.body["lora_name"])
        del self._adapters[call.body["lora_name"]]
        return self._adapter_answer()

    def _adapter_answer(self) -> dict[str, Any]:
        facts = {"rid": None, "http_worker_ipc": None, "success": True, "error_message": ""}
        return {**facts, "loaded_adapters": self._adapters}

    async def _check(self, call: Call) -> Any:
        checksums = await self._core.call("checksum")
        ranks = [
            {
                "checksums": checksums,
                "per_gpu_checksum": str(sorted(checksums.items())),
                "parallelism_info": [{"role": "target", "rank": 0, "size": 1, **_RANKS}],
            }
        ]
        return {
            "success": True,
            "message": "Success.",
            "ranks": ranks,
            "per_engine_checksum": str(sorted(checksums.items())),
        }


def _sampling_mask(candidates: list[list[list[float]]]) -> dict[str, Any]:
    """Returns the fields of `return_sampling_mask` with the mode `support`."""
    return {
        "output_token_sampling_mask": [[token for token, _ in row] for row in candidates],
        "output_token_sampling_logprobs": [[logprob for _, logprob in row] for row in candidates],
        "output_token_sampling_mask_length": len(candidates),
    }


def _flat_candidates(candidates: list[list[list[float]]], count: int) -> dict[str, Any]:
    """Returns the fields of `return_flat_raw_output_top_logprobs` in base64."""
    rows = [row[:count] for row in candidates]
    ids = array("i", [int(token) for row in rows for token, _ in row])
    values = array("f", [logprob for row in rows for _, logprob in row])
    return {
        "input_top_logprobs": [],
        "output_top_logprobs_val_flat_b64": base64.b64encode(values.tobytes()).decode(),
        "output_top_logprobs_idx_flat_b64": base64.b64encode(ids.tobytes()).decode(),
        "output_top_logprobs_val_flat_b64_dtype": "float32",
        "output_top_logprobs_idx_flat_b64_dtype": "int32",
        "output_top_logprobs_shape": [len(rows), count],
        "output_top_logprobs_null_prefix": 0,
    }


_RANKS = {f"{kind}_{name}": value for kind in ("tp", "dp", "pp") for name, value in (("rank", 0), ("size", 1))}
_EMBEDDING: dict[str, Any] = {
    "family": "none",
    "task": "none",
    "execution": "none",
    "attention": "none",
    "pooling": "model_defined",
    "normalize": False,
    "postprocessor": "none",
    "tokenizer_special_tokens": "model_default",
    "supports_dimensions": False,
    "supports_token_embeddings": False,
    "supports_multimodal": False,
    "requires_embedding_flag": False,
    "auto_enable_embedding": False,
    "bcg_eligibility": "disabled",
    "safe_disable_kv_cache": False,
    "safe_disable_radix_cache": False,
    "safe_disable_chunked_prefill": False,
    "enabled": False,
    "matryoshka_dimensions": [],
    "bcg": {
        "prefill_backend": "disabled",
        "enabled": False,
        "capture_token_budget": 4096,
        "capture_batch_sizes": [4, 8],
    },
    "cache": {"kv_cache_disabled": False, "radix_cache_disabled": False, "chunked_prefill_disabled": False},
}
"""Facts about embeddings, which a generating model does not have."""
