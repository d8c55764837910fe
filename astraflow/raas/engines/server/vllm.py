"""vLLM (0.32.0): routes, formats and command line."""

import json
import os
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from astraflow.client.model_server import ServerClient
from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling
from astraflow.contract.rollouts.recording import Mixture
from astraflow.contract.rollouts.token_columns import MAX_SUPPORT, TokenColumn, TokenColumns
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.raas.engines import engines
from astraflow.raas.engines.base import PauseMode
from astraflow.raas.engines.memory import MAX_RANK
from astraflow.raas.engines.server.dialect import (
    CONTROL_S,
    MODEL_NAME,
    RELOAD_S,
    SERVER_KEEPS_OPEN_S,
    Launch,
    ServerLoad,
)
from astraflow.raas.engines.server.engine import ServerEngine
from astraflow.raas.engines.server.environments import Environment
from astraflow.raas.engines.server.formats import (
    distribution_columns,
    experts_from_npy,
    invalid_answer,
    is_recorded,
    mixture_in,
    parse_metrics,
    table,
    version_spans,
    vocabulary_size,
)
from astraflow.raas.engines.server.model_folder import WEIGHTS
from astraflow.raas.engines.server.options import ServerOptions

_IN_SERVER = Path(__file__).parent / "in_server"
_FINISH = {"stop": Finish.STOP, "length": Finish.LENGTH, "abort": Finish.ABORT}
_TIES = 16
"""Candidates beyond the `top_k` of a request whose kept sets are recorded: tokens as likely as its last one."""
_GREEDY = 1e-5
"""Temperature below which vLLM takes the most likely token."""
_ABORT_PREFIX = "generate-tokens-"
"""vLLM adds it to the id of a request to `/inference/v1/generate`; an abort of the plain id aborts nothing."""


class VllmOptions(ServerOptions):
    """Options of vLLM servers."""


@engines.register("vllm", options=VllmOptions)
class VllmEngine(ServerEngine):
    """Engine behind vLLM servers."""

    def __init__(self, options: VllmOptions, model: Mapping[str, Any]) -> None:
        super().__init__(VllmDialect(), options, model)


class VllmDialect:
    """Routes and formats of vLLM."""

    kind = "vllm"

    def __init__(self) -> None:
        self._options: ServerOptions = VllmOptions()
        """Options of the launch."""
        self._requests: dict[str, str] = {}
        """Id in the server of the request that holds each generation in flight."""
        self._max_candidates = 0
        """Largest number of logprobs per token that the server returns; 0 before a launch."""
        self._vocabulary = 0
        """Tokens of the model; 0 before a launch."""
        self._mixture: Mixture | None = None
        """Shape of the mixture, when the server returns routes."""

    def launch(
        self, environment: Environment, options: ServerOptions, *, model: Path, port: int, key: str, devices: str
    ) -> Launch:
        """Returns the command that starts a server. Weights are placeholders until the first load."""
        is_cpu = environment.device == "cpu"
        dtype = options.dtype_on(environment.device)
        self._options = options
        self._vocabulary = vocabulary_size(model)
        self._max_candidates = min(MAX_SUPPORT + _TIES, self._vocabulary)
        flags: dict[str, str | None] = {
            "--model": str(model),
            "--served-model-name": MODEL_NAME,
            "--load-format": "dummy",
            "--host": "127.0.0.1",
            "--port": str(port),
            "--dtype": dtype,
            "--generation-config": "vllm",
            "--enable-scale-out": None,
            "--disable-uvicorn-access-log": None,
            "--middleware": "astraflow_key.RequiresKey",
            "--worker-extension-cls": "astraflow_vllm.WeightLoader",
            # Logprobs of the distribution that was sampled; the default is the one before temperature and top-p.
            "--logprobs-mode": "processed_logprobs",
            "--max-logprobs": str(self._max_candidates),
            "--tensor-parallel-size": str(options.tensor_parallel),
            "--pipeline-parallel-size": str(options.pipeline_parallel),
            # Recurrent states, as the trainer has them; by default some models' are rounded to 16 bits at each token.
            "--mamba-ssm-cache-dtype": "float32",
        }
        flags |= _option_flags(options, is_cpu=is_cpu)
        if options.return_routes:
            self._mixture = mixture_in(model)
        variables = {
            "ASTRAFLOW_SERVER_KEY": key,
            "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(SERVER_KEEPS_OPEN_S),
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(_IN_SERVER),
            "VLLM_SERVER_DEV_MODE": "1",  # the routes that pause generation and load weights
            "VLLM_NO_USAGE_STATS": "1",
        }
        if options.deterministic:
            variables["VLLM_BATCH_INVARIANT"] = "1"
        if options.lora:
            variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        if is_cpu:
            flags["--enforce-eager"] = None
            variables |= {
                "VLLM_CPU_KVCACHE_SPACE": f"{options.cache_gib or 1.0:g}",
                "OMP_NUM_THREADS": str(options.threads),
                "ASTRAFLOW_SLEEPING_WAITS": "1",
                # The worker's threads wait actively. On all cores they starve the frontend, which then answers neither
                # a pause nor an abort for seconds.
                "VLLM_CPU_NUM_OF_RESERVED_CPU": str(min(1, (os.cpu_count() or 1) - 1)),
            }
        else:
            flags["--gpu-memory-utilization"] = str(options.memory_share)
            variables["CUDA_VISIBLE_DEVICES"] = devices
        arguments = [part for flag, value in flags.items() for part in (flag, value) if part is not None]
        program = str(_IN_SERVER / "astraflow_vllm.py")
        return Launch(argv=(str(environment.python), program, *arguments, *options.arguments), variables=variables)

    async def is_up(self, client: ServerClient) -> bool:
        """Returns whether the server answers control requests."""
        await client.get("/is_paused", limit_s=5.0)
        return True

    async def generate(
        self, client: ServerClient, request_ids: Sequence[str], prompt: Int32Array, sampling: Sampling
    ) -> list[Generation]:
        """Continues a prompt, once for each id. Raises: ServerRefused, ServerUnreachable, CorruptData; InvalidInput for
        a sampling that excludes drafts."""
        self._options.check_verified(sampling)
        first = request_ids[0]
        self._requests.update(dict.fromkeys(request_ids, first))
        try:
            answer = await client.post(
                "/inference/v1/generate",
                {
                    "request_id": first,
                    "model": client.adapter or MODEL_NAME,
                    "token_ids": prompt,
                    "sampling_params": {
                        **_sampling_parameters(sampling),
                        "logprobs": self._candidates(sampling),
                        "n": len(request_ids),
                    },
                },
                limit_s=None,
            )
        finally:
            for request_id in request_ids:
                self._requests.pop(request_id, None)
        return parse_generations(
            answer,
            sampling,
            count=len(request_ids),
            vocabulary=self._vocabulary,
            mixture=self._mixture if sampling.experts else None,
        )

    def _candidates(self, sampling: Sampling) -> int:
        """Returns the number of logprobs per token to ask for. The sampled token takes the place of the last candidate
        where it is not one of them, and top-k keeps all tokens that are as likely as the last one."""
        count = sampling.top_tokens + 1 if sampling.top_tokens else 0
        if sampling.with_support:
            count = max(count, sampling.top_k + _TIES)
        return min(count, self._max_candidates)

    async def score(
        self, client: ServerClient, tokens: Int32Array, scored_from: int, *, limit_s: float | None
    ) -> Float32Array:
        """Returns the logprobs at temperature 1 of `tokens[scored_from:]`; generates one token, which is dropped."""
        answer = await client.post(
            "/inference/v1/generate",
            {
                "model": client.adapter or MODEL_NAME,
                "token_ids": tokens,
                "sampling_params": {"max_tokens": 1, "temperature": 0, "prompt_logprobs": 0, "detokenize": False},
            },
            limit_s=limit_s,
        )
        try:
            entries = answer["prompt_logprobs"][scored_from:]
            scored = tokens[scored_from:].tolist()
            logprobs = [entry[str(token)]["logprob"] for entry, token in zip(entries, scored, strict=True)]
            return np.minimum(np.array(logprobs, dtype=np.float32), 0.0)
        except (KeyError, TypeError, IndexError, ValueError) as problem:
            raise invalid_answer("vLLM", answer) from problem

    async def abort(self, client: ServerClient, request_ids: Sequence[str]) -> None:
        """Ends generations at once, with those of the same request."""
        ids = list({_ABORT_PREFIX + self._requests.get(request_id, request_id) for request_id in request_ids})
        await client.post("/abort_requests", {"request_ids": ids}, limit_s=CONTROL_S, is_repeatable=True)

    async def pause(self, client: ServerClient, mode: PauseMode) -> None:
        """Stops generation. `clear_cache` makes `keep` compute the requests again, although vLLM's documentation says
        that this mode ignores it."""
        query = {"mode": mode.value, "clear_cache": "true"}
        await client.post("/pause", {}, query=query, limit_s=CONTROL_S, is_repeatable=True)

    async def resume(self, client: ServerClient) -> None:
        """Resumes generation."""
        await client.post("/resume", {}, limit_s=CONTROL_S, is_repeatable=True)

    async def reload(self, client: ServerClient, folder: Path, version: str, *, learn_mapping: bool) -> None:
        """Loads a whole version from shared memory."""
        arguments = {"path": str(folder / WEIGHTS), "learn": "1" if learn_mapping else "0"}
        await self._call_workers(client, "astraflow_load", arguments, version)

    async def load_adapter(self, client: ServerClient, folder: Path, version: str) -> None:
        """Loads adapters of a version. Requests that name the old ones were aborted by the pause."""
        before, client.adapter = client.adapter, folder.name
        body = {"lora_name": folder.name, "lora_path": str(folder)}
        await client.post("/v1/load_lora_adapter", body, limit_s=RELOAD_S)
        if before:
            await client.post("/v1/unload_lora_adapter", {"lora_name": before}, limit_s=CONTROL_S)
        await client.post("/update_weight_version", {"new_version": version}, limit_s=CONTROL_S, is_repeatable=True)

    def can_patch(self, environment: Environment, options: ServerOptions) -> bool:
        """Returns False on a CPU, where vLLM packs its weights, and for rounded weights."""
        return environment.device != "cpu" and options.weights == "exact"

    async def patch(self, client: ServerClient, patch: Path, version: str, *, resumes: bool) -> None:
        """Writes changed elements in place."""
        await self._call_workers(client, "astraflow_patch", {"path": str(patch)}, version)
        if resumes:
            await self.resume(client)

    async def checksum(self, client: ServerClient) -> str:
        """Returns the checksums of all parameters, as text."""
        return str(await client.post("/weight_checker", {"action": "checksum"}, limit_s=RELOAD_S))

    async def load(self, client: ServerClient) -> ServerLoad:
        return parse_metrics((await client.get("/metrics", limit_s=5.0)).decode(), prefix="vllm:")

    async def _call_workers(
        self, client: ServerClient, method: str, arguments: Mapping[str, str], version: str
    ) -> None:
        """Calls the worker extension in every worker, and sets the version. The pause has discarded the cache, and a
        paused server computes nothing that could fill it."""
        body = {"method": method, "kwargs": dict(arguments)}
        await client.post("/collective_rpc", body, limit_s=RELOAD_S, is_repeatable=True)
        await client.post("/update_weight_version", {"new_version": version}, limit_s=CONTROL_S, is_repeatable=True)


def _option_flags(options: ServerOptions, *, is_cpu: bool) -> dict[str, str | None]:
    flags: dict[str, str | None] = {}
    if options.expert_parallel:
        flags["--enable-expert-parallel"] = None
    if options.weights == "fp8":
        flags["--quantization"] = "fp8_per_channel"
    if options.context_tokens:
        flags["--max-model-len"] = str(options.context_tokens)
    if options.max_running or is_cpu:
        flags["--max-num-seqs"] = str(options.max_running or 64)
    if options.return_routes:
        flags["--enable-return-routed-experts"] = None
    if options.lora:
        flags |= {"--enable-lora": None, "--max-lora-rank": str(MAX_RANK)}
    if options.speculation != "off":
        flags["--speculative-config"] = json.dumps(_speculation(options))
    return flags


def _speculation(options: ServerOptions) -> dict[str, Any]:
    drafts: dict[str, Any] = {"method": options.speculation, "num_speculative_tokens": options.draft_tokens}
    if options.speculation == "ngram":
        return {**drafts, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    # Without a format of its own it would be loaded as the policy is: as placeholders.
    return {**drafts, "model": options.draft_model, "draft_load_config": {"load_format": "auto"}}


def _sampling_parameters(sampling: Sampling) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "ignore_eos": not (sampling.json_schema or sampling.regex),  # the caller names all stop tokens
        "stop_token_ids": list(sampling.stop_tokens),
        "detokenize": bool(sampling.stop_strings),
        "skip_special_tokens": False,
    }
    if sampling.stop_strings:
        parameters["stop"] = list(sampling.stop_strings)
    if sampling.json_schema:
        parameters["structured_outputs"] = {"json": sampling.json_schema}
    elif sampling.regex:
        parameters["structured_outputs"] = {"regex": sampling.regex}
    if sampling.seed is not None:
        parameters["seed"] = sampling.seed
    return parameters


def parse_generations(
    answer: Any,
    sampling: Sampling | None = None,
    *,
    count: int = 1,
    vocabulary: int = 0,
    mixture: Mixture | None = None,
) -> list[Generation]:
    """Returns the generations of an answer to `/inference/v1/generate`. Raises: CorruptData.

    sampling: of the request; None for one without columns. vocabulary: number of the model's tokens. mixture: shape
    of the experts that were asked for; None for none.
    """
    try:
        choices = answer["choices"]
        if len(choices) != count:
            raise ValueError(f"{len(choices)} choices instead of {count}")
        return [_parse_choice(choice, sampling, vocabulary=vocabulary, mixture=mixture) for choice in choices]
    except (KeyError, TypeError, IndexError, ValueError, InvalidInput) as problem:
        raise invalid_answer("vLLM", answer) from problem


def _parse_choice(
    choice: Mapping[str, Any], sampling: Sampling | None, *, vocabulary: int, mixture: Mixture | None
) -> Generation:
    tokens = np.array(choice["token_ids"] or [], dtype=np.int32)
    content = (choice.get("logprobs") or {}).get("content") or []
    logprobs = np.fromiter(map(itemgetter("logprob"), content), dtype=np.float32)
    if len(logprobs) != len(tokens):
        raise ValueError("tokens and logprobs differ in number")
    columns: TokenColumns = {}
    if sampling is not None and is_recorded(sampling) and len(tokens):
        logprobs, columns = _candidates(content, tokens, logprobs, sampling, vocabulary=vocabulary)
    routes = choice.get("routed_experts")
    if routes is not None and mixture is not None:
        columns = {**columns, **experts_from_npy(routes, mixture, tokens=len(tokens))}
    return Generation(
        tokens=tokens,
        logprobs=np.minimum(logprobs, 0.0),
        spans=version_spans(choice["weight_versions"], len(tokens)),
        finish=_FINISH[choice["finish_reason"]],
        columns=columns,
    )


def _candidates(
    content: Sequence[Mapping[str, Any]],
    tokens: Int32Array,
    logprobs: Float32Array,
    sampling: Sampling,
    *,
    vocabulary: int,
) -> tuple[Float32Array, TokenColumns]:
    """Returns the logprobs and the columns of the sampled distribution.

    vLLM returns those after temperature, top-k, top-p and min-p, but at temperature 0 those of temperature 1.
    """
    rows = list(map(itemgetter("top_logprobs"), content))
    widths = np.fromiter(map(len, rows), dtype=np.intp, count=len(rows))
    entries = list(chain.from_iterable(rows))
    ids = table(np.fromiter(map(itemgetter("token_id"), entries), dtype=np.int32), widths, absent=-1)
    values = table(np.fromiter(map(itemgetter("logprob"), entries), dtype=np.float32), widths, absent=-np.inf)
    if sampling.temperature < _GREEDY:
        logprobs, values = np.zeros_like(logprobs), np.where(ids == tokens[:, None], np.float32(0), -np.inf)
    columns = distribution_columns(ids, values, sampling)
    kept = columns.get(TokenColumn.SUPPORT)
    if kept is not None and kept.shape[1] == ids.shape[1] < vocabulary:
        raise ValueError(f"kept sets of {kept.shape[1]} tokens and perhaps more")
    return logprobs, columns
