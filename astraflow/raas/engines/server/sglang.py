"""SGLang (0.5.23): routes, formats and command line."""

import asyncio
import base64
import json
import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from astraflow.client.model_server import ServerClient, ServerRefused
from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling
from astraflow.contract.rollouts.recording import Mixture
from astraflow.contract.rollouts.token_columns import TokenColumns
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
    experts_from_int32,
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
from astraflow.weights.adapters import PEFT_CONFIG, PEFT_WEIGHTS

_IN_SERVER = Path(__file__).parent / "in_server"
_LOADER = "astraflow_sglang.apply"
_UPDATE = "/astraflow/update"
_FINISH = {"stop": Finish.STOP, "length": Finish.LENGTH, "abort": Finish.ABORT}


class SglangOptions(ServerOptions):
    """Options of SGLang servers."""

    not_drafted: ClassVar[Mapping[str, str]] = {
        "draft_model": "SGLang (0.5.23) loads each version of the policy into the draft model as well; use ngram, or "
        "the engine vllm"
    }
    not_rounded: ClassVar[Mapping[str, str]] = {
        **ServerOptions.not_rounded,
        "fp8": "SGLang (0.5.23) rounds to FP8 at its start, and loads no exact version into rounded weights afterwards "
        "(its loader flash_rl does, for two classes of models, but needs the first version at the start); use the "
        "engine vllm",
    }

    def check_device(self, device: str) -> None:
        """Checks the options on `cpu` or `cuda`. Raises: InvalidInput for speculation on a CPU."""
        if device == "cpu" and self.speculation != "off":
            raise InvalidInput(
                "cannot speculate with SGLang on a CPU: it accepts the most likely tokens there, whatever the "
                "temperature; set speculation = 'off', or use the engine vllm",
                code="engine.unverified_drafts",
            )

    def unverified(self, sampling: Sampling) -> str:
        """Returns why the server cannot verify drafts for requests with this sampling; empty if it can."""
        if is_recorded(sampling) and is_cut(sampling):
            return "SGLang returns no kept sets of drafted tokens"
        return super().unverified(sampling)


@engines.register("sglang", options=SglangOptions)
class SglangEngine(ServerEngine):
    """Engine behind SGLang servers."""

    def __init__(self, options: SglangOptions, model: Mapping[str, Any]) -> None:
        super().__init__(SglangDialect(), options, model)


class SglangDialect:
    """Routes and formats of SGLang."""

    kind = "sglang"

    def __init__(self) -> None:
        self._options: ServerOptions = SglangOptions()
        """Options of the launch."""
        self._mixture: Mixture | None = None
        """Shape of the mixture, when the server returns routes."""
        self._vocabulary = 0
        """Tokens of the model; 0 before a launch."""

    def launch(
        self, environment: Environment, options: ServerOptions, *, model: Path, port: int, key: str, devices: str
    ) -> Launch:
        """Returns the command that starts a server. Weights are placeholders until the first load.

        Raises: InvalidInput for speculation on a CPU.
        """
        is_cpu = environment.device == "cpu"
        options.check_device(environment.device)
        self._options = options
        dtype = options.dtype_on(environment.device)
        flags: dict[str, str | None] = {
            "--model-path": str(model),
            "--served-model-name": MODEL_NAME,
            "--load-format": "dummy",
            "--host": "127.0.0.1",
            "--port": str(port),
            "--dtype": dtype,
            "--custom-weight-loader": _LOADER,
            "--skip-server-warmup": None,
            "--log-level-http": "warning",  # no line for each request
            "--enable-metrics": None,
            "--tp-size": str(options.tensor_parallel),
            "--pp-size": str(options.pipeline_parallel),
        }
        flags |= self._option_flags(options, model=model, is_cpu=is_cpu)
        variables = {
            "ASTRAFLOW_SERVER_KEY": key,
            "SGLANG_TIMEOUT_KEEP_ALIVE": str(SERVER_KEEPS_OPEN_S),
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(_IN_SERVER),
            "SGLANG_MAMBA_SSM_DTYPE": "float32",  # recurrent states, as the trainer has them
        }
        if dtype != "auto":
            variables["SGLANG_MAMBA_CONV_DTYPE"] = dtype  # bfloat16 by default, whatever the model computes in
        if is_cpu:
            flags |= _cpu_flags(options)
            variables |= _cpu_variables(options)
        else:
            flags["--mem-fraction-static"] = str(options.memory_share)
            variables["CUDA_VISIBLE_DEVICES"] = devices
        arguments = [part for flag, value in flags.items() for part in (flag, value) if part is not None]
        program = str(_IN_SERVER / "astraflow_sglang.py")
        return Launch(argv=(str(environment.python), program, *arguments, *options.arguments), variables=variables)

    def _option_flags(self, options: ServerOptions, *, model: Path, is_cpu: bool) -> dict[str, str | None]:
        flags: dict[str, str | None] = {}
        self._vocabulary = vocabulary_size(model)
        if options.expert_parallel:
            flags["--ep-size"] = str(options.tensor_parallel)
        if options.context_tokens:
            flags["--context-length"] = str(options.context_tokens)
        if options.max_running or is_cpu:
            flags["--max-running-requests"] = str(options.max_running or 64)
        if options.return_routes:
            self._mixture = mixture_in(model)
            flags["--enable-return-routed-experts"] = None
        if options.deterministic:
            flags["--enable-deterministic-inference"] = None
        if options.speculation != "off":
            flags |= {
                "--speculative-algorithm": "NGRAM",
                "--speculative-num-draft-tokens": str(options.draft_tokens + 1),  # the last accepted token is one
                "--speculative-ngram-max-bfs-breadth": "1",  # a tree needs pages of one token
            }
        if options.lora:
            flags |= {"--enable-lora": None, "--max-lora-rank": str(MAX_RANK), "--lora-target-modules": "all"}
        return flags

    async def is_up(self, client: ServerClient) -> bool:
        """Returns whether the server answers control requests."""
        await client.get("/model_info", limit_s=5.0)
        return True

    async def generate(
        self, client: ServerClient, request_ids: Sequence[str], prompt: Int32Array, sampling: Sampling
    ) -> list[Generation]:
        """Continues a prompt, once for each id. Raises: ServerRefused, ServerUnreachable, CorruptData; InvalidInput for
        a seed."""
        if sampling.seed is not None and not self._options.deterministic:
            raise InvalidInput(
                "cannot sample with a seed: SGLang ignores it unless its kernels are deterministic; set "
                "deterministic = true, or use the engine vllm",
                code="engine.unsupported_sampling",
            )
        self._options.check_verified(sampling)
        is_group = len(request_ids) > 1
        answer = await client.post(
            "/generate",
            {
                "rid": list(request_ids) if is_group else request_ids[0],
                "input_ids": [prompt] * len(request_ids) if is_group else prompt,
                "lora_path": client.adapter or None,
                "sampling_params": _sampling_parameters(sampling),
                "return_logprob": True,
                "return_routed_experts": sampling.experts and self._mixture is not None,
                **self._recorded(sampling),
            },
            limit_s=None,
        )
        answers = answer if is_group else [answer]
        if not isinstance(answers, list) or len(answers) != len(request_ids):
            raise invalid_answer("SGLang", answer)
        return [parse_generation(member, sampling, mixture=self._mixture) for member in answers]

    def _recorded(self, sampling: Sampling) -> dict[str, Any]:
        """Returns the fields of a request that ask for the most likely tokens, as arrays, and for the kept set.

        SGLang returns them, as all logprobs, after the temperature and before top-k, top-p and min-p. Where these cut,
        it is asked for the tokens that they kept and the logprobs among those.
        """
        if not is_recorded(sampling):
            return {}
        if is_cut(sampling):
            return {"return_sampling_mask": True, "sampling_logprobs_mode": "support"}
        return {
            "top_logprobs_num": min(sampling.top_tokens, self._vocabulary),
            "return_flat_raw_output_top_logprobs": True,
            "return_flat_raw_top_logprobs_b64": True,
        }

    async def score(
        self, client: ServerClient, tokens: Int32Array, scored_from: int, *, limit_s: float | None
    ) -> Float32Array:
        """Returns the logprobs at temperature 1 of `tokens[scored_from:]`; generates nothing."""
        answer = await client.post(
            "/generate",
            {
                "input_ids": tokens,
                "lora_path": client.adapter or None,
                "sampling_params": {"max_new_tokens": 0, "temperature": 0},
                "return_logprob": True,
                "logprob_start_len": scored_from - 1,
            },
            limit_s=limit_s,
        )
        try:
            entries = answer["meta_info"]["input_token_logprobs"]
            return np.array([entry[0] for entry in entries[1:]], dtype=np.float32)
        except (KeyError, TypeError, IndexError, ValueError) as problem:
            raise invalid_answer("SGLang", answer) from problem

    async def abort(self, client: ServerClient, request_ids: Sequence[str]) -> None:
        """Ends requests at once."""
        for request_id in request_ids:
            await client.post("/abort_request", {"rid": request_id}, limit_s=CONTROL_S, is_repeatable=True)

    async def pause(self, client: ServerClient, mode: PauseMode) -> None:
        """Stops generation. KEEP is `retract`, which discards the cache of the requests.

        SGLang answers before it pauses, so a flush follows: its answer comes after the step in flight. The flush is
        refused while a request waits for its grammar, which is compiled only while generation runs; the same flush
        would be refused after an update, when the weights have changed.
        """
        if mode is PauseMode.ABORT:
            await self._end_requests(client)
            await client.post("/pause_generation", {"mode": "abort"}, limit_s=CONTROL_S, is_repeatable=True)
            return
        for attempt in range(1, _FLUSH_ATTEMPTS + 1):
            await client.post("/pause_generation", {"mode": "retract"}, limit_s=CONTROL_S, is_repeatable=True)
            try:
                await client.post("/flush_cache", {}, limit_s=CONTROL_S, is_repeatable=True)
                return
            except ServerRefused:
                if attempt == _FLUSH_ATTEMPTS:
                    raise
                await self.resume(client)
                await asyncio.sleep(_FLUSH_RETRY_S)

    async def _end_requests(self, client: ServerClient) -> None:
        """Aborts all requests and waits for their end, which a pause by `abort` notices only once a second."""
        body = {"rid": "", "abort_all": True}
        await client.post("/abort_request", body, limit_s=CONTROL_S, is_repeatable=True)
        for _ in range(_FLUSH_ATTEMPTS):
            with suppress(ServerRefused):  # refused while a request runs
                await client.post("/flush_cache", {}, limit_s=CONTROL_S, is_repeatable=True)
                return
            await asyncio.sleep(_ABORT_POLL_S)

    async def resume(self, client: ServerClient) -> None:
        """Resumes generation."""
        body = {"torch_empty_cache": False}
        await client.post("/continue_generation", body, limit_s=CONTROL_S, is_repeatable=True)

    async def reload(self, client: ServerClient, folder: Path, version: str, *, learn_mapping: bool) -> None:
        """Loads a whole version from shared memory. `auto` is explicit: the default is the format at the start."""
        if learn_mapping:
            await self._apply(client, f"load:{folder / WEIGHTS}", version, resumes=False)
            return
        answer = await client.post(
            "/update_weights_from_disk",
            {"model_path": str(folder), "load_format": "auto", "weight_version": version, "flush_cache": True},
            limit_s=RELOAD_S,
        )
        _check_success(answer, "/update_weights_from_disk")

    async def load_adapter(self, client: ServerClient, folder: Path, version: str) -> None:
        """Loads adapters of a version. Requests that name the old ones were aborted by the pause.

        SGLang would read a folder in the format of its start, which is `dummy`, so it gets the tensors: a pickle of
        this program, of megabytes, sent to the own child.
        """
        before, client.adapter = client.adapter, folder.name
        body = await asyncio.to_thread(_adapter_request, folder, ranks=self._options.tensor_parallel)
        path = "/load_lora_adapter_from_tensors"
        _check_success(await client.post(path, body, limit_s=RELOAD_S), path)
        if before:
            answer = await client.post("/unload_lora_adapter", {"lora_name": before}, limit_s=CONTROL_S)
            _check_success(answer, "/unload_lora_adapter")
        changes = {"new_version": version, "abort_all_requests": False}
        await client.post("/update_weight_version", changes, limit_s=CONTROL_S, is_repeatable=True)

    def can_patch(self, environment: Environment, options: ServerOptions) -> bool:
        """Returns True: a model that cannot be patched is noticed at the first patch."""
        return True

    async def patch(self, client: ServerClient, patch: Path, version: str, *, resumes: bool) -> None:
        """Writes changed elements in place."""
        await self._apply(client, f"patch:{patch}", version, resumes=resumes)

    async def checksum(self, client: ServerClient) -> str:
        """Returns the checksums of all parameters, as text."""
        answer = await client.post("/weights_checker", {"action": "checksum"}, limit_s=RELOAD_S)
        return str(answer.get("payload", answer))

    async def load(self, client: ServerClient) -> ServerLoad:
        """Returns the load from the metrics."""
        text = (await client.get("/metrics", limit_s=5.0)).decode()
        return parse_metrics(text, prefix="sglang:", draft_tokens=self._options.draft_tokens)

    async def _apply(self, client: ServerClient, payload: str, version: str, *, resumes: bool) -> None:
        """Calls the custom weight loader in every rank, by the route that `in_server/astraflow_sglang.py` adds."""
        body = {"payload": payload, "version": version, "resumes": resumes}
        _check_success(await client.post(_UPDATE, body, limit_s=RELOAD_S), _UPDATE)


_CPU_TOKENS_PER_GIB = 32_768
_MAX_KEPT = 4000
"""Most tokens that top-k keeps where the kept tokens are recorded: SGLang refuses more than 4,096, ties included."""
_FLUSH_ATTEMPTS = 20
_FLUSH_RETRY_S = 0.1
_ABORT_POLL_S = 0.01


def _cpu_flags(options: ServerOptions) -> dict[str, str | None]:
    flags = {
        "--device": "cpu",
        "--attention-backend": "torch_native",
        "--sampling-backend": "pytorch",
        "--grammar-backend": "xgrammar",
        "--disable-overlap-schedule": None,
        # The limit of tokens bounds the cache. This share only decides how much of the free memory other processes may
        # take while the server starts, before it refuses to.
        "--mem-fraction-static": "0.5",
        "--max-total-tokens": str(round((options.cache_gib or 1.0) * _CPU_TOKENS_PER_GIB)),
        "--sleep-on-idle": None,
        "--watchdog-timeout": "30",
    }
    return {**flags, "--lora-backend": "torch_native"} if options.lora else flags


def _cpu_variables(options: ServerOptions) -> dict[str, str]:
    variables = {
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": "all",
        "OMP_NUM_THREADS": str(options.threads),
        "PYTHONPATH": f"{_IN_SERVER}:{_IN_SERVER / 'cpu'}",
    }
    return {**variables, "ASTRAFLOW_WITHOUT_PINNING": "1"} if options.lora else variables


def _sampling_parameters(sampling: Sampling) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "skip_special_tokens": False,
        # The end-of-sequence token of the model ends a generation only if the caller names it, or names any stop token:
        # SGLang ignores all stop tokens otherwise.
        "ignore_eos": not (sampling.stop_tokens or sampling.json_schema or sampling.regex),
        "stop_token_ids": list(sampling.stop_tokens),
    }
    if sampling.stop_strings:
        parameters["stop"] = list(sampling.stop_strings)
    if sampling.json_schema:
        parameters["json_schema"] = sampling.json_schema
    if sampling.regex:
        parameters["regex"] = sampling.regex
    if sampling.seed is not None:
        parameters["sampling_seed"] = sampling.seed
    if is_recorded(sampling) and is_cut(sampling):
        parameters["top_k"] = min(sampling.top_k or _MAX_KEPT, _MAX_KEPT)
    return parameters


def is_cut(sampling: Sampling) -> bool:
    """Returns whether top-k, top-p, min-p or temperature 0 leave a part of the tokens only."""
    return sampling.temperature == 0 or sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0


def parse_generation(answer: Any, sampling: Sampling | None = None, *, mixture: Mixture | None = None) -> Generation:
    """Returns the generation of an answer to `/generate`. Raises: CorruptData.

    sampling: of the request; None for one without columns. mixture: shape of the experts, which come without one; None
    without routes.
    """
    try:
        facts = answer["meta_info"]
        entries = np.array(facts.get("output_token_logprobs") or [], dtype=np.float64).reshape(-1, 3)
        tokens = entries[:, 1].astype(np.int32)
        if not np.array_equal(tokens, answer["output_ids"]):
            raise ValueError("tokens and logprobs differ")
        logprobs: Float32Array = entries[:, 0].astype(np.float32)
        columns: TokenColumns = {}
        if sampling is not None and is_recorded(sampling) and len(tokens):
            read = _kept_candidates if is_cut(sampling) else _candidates
            logprobs, columns = read(facts, tokens, logprobs, sampling)
        routes = facts.get("routed_experts")
        if routes is not None and mixture is None:
            raise ValueError("routes that were not asked for")
        if routes is not None and mixture is not None:
            columns = {**columns, **experts_from_int32(routes, mixture, tokens=len(tokens))}
        return Generation(
            tokens=tokens,
            logprobs=np.minimum(logprobs, 0.0),
            spans=version_spans(facts.get("weight_versions"), len(tokens)),  # absent if aborted in the queue
            finish=_FINISH[facts["finish_reason"]["type"]],
            columns=columns,
            drafted=int(facts.get("spec_num_proposed_drafts", 0)),
            accepted=int(facts.get("spec_num_correct_drafts", 0)),
        )
    except (KeyError, TypeError, IndexError, ValueError, InvalidInput) as problem:
        raise invalid_answer("SGLang", answer) from problem


def _candidates(
    facts: Mapping[str, Any], tokens: Int32Array, logprobs: Float32Array, sampling: Sampling
) -> tuple[Float32Array, TokenColumns]:
    """Returns the logprobs, and the most likely tokens of the distribution after the temperature."""
    rows, width = facts["output_top_logprobs_shape"]
    if rows != len(tokens):
        raise ValueError(f"{rows} rows of candidates for {len(tokens)} tokens")
    ids, values = (
        np.frombuffer(base64.b64decode(facts[f"output_top_logprobs_{name}_flat_b64"], validate=True), dtype=dtype)
        for name, dtype in (("idx", "<i4"), ("val", "<f4"))
    )
    return logprobs, distribution_columns(ids.reshape(rows, width), values.reshape(rows, width), sampling)


def _kept_candidates(
    facts: Mapping[str, Any], tokens: Int32Array, logprobs: Float32Array, sampling: Sampling
) -> tuple[Float32Array, TokenColumns]:
    """Returns the logprobs and the columns of the distribution over the tokens that top-k, top-p and min-p kept."""
    masks = facts["output_token_sampling_mask"]
    sizes = np.fromiter(map(len, masks), dtype=np.intp, count=len(masks))
    kept = np.fromiter(chain.from_iterable(masks), dtype=np.int32)
    values = np.fromiter(chain.from_iterable(facts["output_token_sampling_logprobs"]), dtype=np.float32)
    is_sampled = kept == np.repeat(tokens, sizes)
    if np.count_nonzero(is_sampled) != len(tokens):
        raise ValueError("a sampled token is not one of the kept tokens")
    return values[is_sampled], distribution_columns(
        table(kept, sizes, absent=-1), table(values, sizes, absent=-np.inf), sampling
    )


def _adapter_request(folder: Path, *, ranks: int) -> dict[str, Any]:
    """Returns the body that loads the adapters in a folder; blocks."""
    from safetensors.torch import load_file

    pickled = pickle.dumps(load_file(folder / PEFT_WEIGHTS))
    return {
        "lora_name": folder.name,
        "config_dict": json.loads((folder / PEFT_CONFIG).read_text()),
        "serialized_named_tensors": ranks * [base64.b64encode(pickled).decode()],
    }


def _check_success(answer: Any, path: str) -> None:
    if not isinstance(answer, dict) or answer.get("success") is not True:
        raise ServerRefused(path, 500, str(answer))
