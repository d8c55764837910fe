"""Options become a command line and variables; only supported combinations are accepted."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from pydantic import ValidationError

from astraflow.client.model_server import KEPT_OPEN_S, ServerClient
from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.generation import Sampling
from astraflow.raas.engines.server import sglang, vllm
from astraflow.raas.engines.server.dialect import Dialect, Launch
from astraflow.raas.engines.server.environments import Environment
from astraflow.raas.engines.server.options import ServerOptions
from tests.errors import raises_code

CPU = Environment(kind="sglang", device="cpu", version="1", folder=Path("/env"))
CUDA = replace(CPU, device="cuda")
DIALECTS: list[Dialect] = [sglang.SglangDialect(), vllm.VllmDialect()]


VOCABULARY = 1000


@pytest.fixture(autouse=True)
def vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sglang, vllm):
        monkeypatch.setattr(module, "vocabulary_size", lambda model: VOCABULARY)


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.kind)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    chosen: Dialect = request.param
    return chosen


def launch(dialect: Dialect, environment: Environment, **options: Any) -> Launch:
    return dialect.launch(environment, ServerOptions(**options), model=Path("/m"), port=1234, key="k", devices="2,3")


def value(launched: Launch, *flags: str) -> str:
    """Returns the value of the flag that is present."""
    (index,) = (index for index, argument in enumerate(launched.argv) if argument in flags)
    return launched.argv[index + 1]


def test_a_server_listens_on_loopback_with_its_key_and_placeholder_weights(dialect: Dialect) -> None:
    launched = launch(dialect, CPU)

    assert launched.argv[0] == "/env/bin/python"
    assert value(launched, "--host") == "127.0.0.1"
    assert value(launched, "--port") == "1234"
    assert "k" in launched.variables.values()
    assert "k" not in launched.argv  # all users of a machine see command lines
    assert value(launched, "--load-format") == "dummy"
    assert value(launched, "--model", "--model-path") == "/m"


def test_a_server_keeps_idle_connections_longer_than_its_client(dialect: Dialect) -> None:
    variables = launch(dialect, CPU).variables

    (kept_s,) = (int(text) for name, text in variables.items() if name.endswith("_TIMEOUT_KEEP_ALIVE"))
    assert kept_s > KEPT_OPEN_S


def test_a_cpu_serves_float32_with_few_threads_and_no_devices(dialect: Dialect) -> None:
    launched = launch(dialect, CPU, threads=3)

    assert value(launched, "--dtype") == "float32"
    assert value(launched, "--max-num-seqs", "--max-running-requests") == "64"
    assert launched.variables["OMP_NUM_THREADS"] == "3"
    assert "CUDA_VISIBLE_DEVICES" not in launched.variables


def test_a_gpu_serves_the_dtype_of_the_model_on_its_devices(dialect: Dialect) -> None:
    launched = launch(dialect, CUDA, memory_share=0.6, tensor_parallel=2)

    assert value(launched, "--dtype") == "auto"
    assert value(launched, "--mem-fraction-static", "--gpu-memory-utilization") == "0.6"
    assert value(launched, "--tp-size", "--tensor-parallel-size") == "2"
    assert launched.variables["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert not {"--max-num-seqs", "--max-running-requests"} & set(launched.argv)


def test_extra_arguments_come_last(dialect: Dialect) -> None:
    assert launch(dialect, CPU, arguments=("--extra", "1")).argv[-2:] == ("--extra", "1")


def test_every_option_changes_the_command_line(dialect: Dialect) -> None:
    plain = launch(dialect, CPU)
    for options in (
        {"context_tokens": 99},
        {"max_running": 5},
        {"pipeline_parallel": 2},
        {"expert_parallel": True},
        {"dtype": "bfloat16"},
        {"deterministic": True},
        {"lora": True},
        {"cache_gib": 2.0},
    ):
        assert launch(dialect, CPU, **options) != plain, options


@pytest.mark.parametrize(
    "options",
    [
        {"servers": 0},
        {"memory_share": 1.0},
        {"dtype": "int8"},
        {"restarts": -1},
        {"probe_every_s": 0},
        {"patch": "always"},
        {"unknown": 1},
        {"weights": "int4"},
        {"weights": "fp8", "dtype": "float32"},
        {"arguments": ("--quantization", "awq")},
        {"arguments": ("--quantization=awq",)},
        {"speculation": "eagle"},
        {"speculation": "ngram", "draft_tokens": 0},
        {"speculation": "draft_model"},
        {"draft_model": "/small"},
        {"speculation": "ngram", "return_routes": True},
        {"arguments": ("--speculative-algorithm", "NGRAM")},
        {"arguments": ("--speculative-config={}",)},
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ServerOptions(**options)


def test_vllm_rounds_weights_to_fp8_at_each_load_and_sglang_refuses_it_with_the_reason() -> None:
    dialect = vllm.VllmDialect()
    assert value(launch(dialect, CUDA, weights="fp8"), "--quantization") == "fp8_per_channel"
    assert value(launch(dialect, CPU, weights="fp8"), "--dtype") == "bfloat16"
    assert "--quantization" not in launch(dialect, CUDA).argv
    assert dialect.can_patch(CUDA, ServerOptions())
    assert not dialect.can_patch(CUDA, ServerOptions(weights="fp8")), "its elements are not those of the version"
    with pytest.raises(ValidationError, match="flash_rl"):
        sglang.SglangOptions(weights="fp8")
    with pytest.raises(ValidationError, match="local_torch"):
        vllm.VllmOptions(weights="int4")


def test_vllm_drafts_by_ngrams_or_a_model_that_is_loaded_from_its_own_folder() -> None:
    dialect = vllm.VllmDialect()
    assert "--speculative-config" not in launch(dialect, CPU).argv

    ngram = json.loads(value(launch(dialect, CPU, speculation="ngram", draft_tokens=3), "--speculative-config"))
    assert ngram == {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    options = {"speculation": "draft_model", "draft_model": "/small"}
    model = json.loads(value(launch(dialect, CUDA, **options), "--speculative-config"))
    assert (model["method"], model["model"]) == ("draft_model", "/small")
    assert model["draft_load_config"] == {"load_format": "auto"}, "that of the policy are placeholders"


def test_sglang_drafts_chains_by_ngrams_on_a_gpu_only() -> None:
    dialect = sglang.SglangDialect()
    launched = launch(dialect, CUDA, speculation="ngram", draft_tokens=3)

    assert value(launched, "--speculative-algorithm") == "NGRAM"
    assert value(launched, "--speculative-num-draft-tokens") == "4"
    assert value(launched, "--speculative-ngram-max-bfs-breadth") == "1"
    with raises_code(InvalidInput, "engine.unverified_drafts"):
        sglang.SglangOptions(speculation="ngram").check_device("cpu")
    with pytest.raises(ValidationError, match="each version"):
        sglang.SglangOptions(speculation="draft_model", draft_model="/small")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("dialect", "options", "refused"),
    [
        (vllm.VllmDialect(), vllm.VllmOptions(speculation="ngram"), [{"min_p": 0.1}]),
        (
            sglang.SglangDialect(),
            sglang.SglangOptions(speculation="ngram"),
            [{"min_p": 0.1}, {"top_k": 7, "with_support": True}, {"temperature": 0.0, "top_tokens": 3}],
        ),
    ],
    ids=["vllm", "sglang"],
)
async def test_sampling_that_a_server_does_not_verify_is_refused(
    dialect: Dialect, options: ServerOptions, refused: list[dict[str, Any]]
) -> None:
    client, tokens = cast("ServerClient", Client()), np.array([1], np.int32)
    dialect.launch(CUDA, options, model=Path("/m"), port=1, key="k", devices="0")
    for filters in refused:
        with raises_code(InvalidInput, "engine.unverified_drafts"):
            await dialect.generate(client, ["a"], tokens, Sampling(max_new_tokens=5, **filters))
    for filters in ({}, {"top_p": 0.9, "top_k": 7}, {"top_tokens": 3}):
        with pytest.raises(Asked):
            await dialect.generate(client, ["a"], tokens, Sampling(max_new_tokens=5, **filters))


def test_sampling_options_become_sglang_parameters() -> None:
    sampling = Sampling(max_new_tokens=5, stop_tokens=(3,), stop_strings=("x",), top_k=4, seed=9, regex="a")
    parameters = sglang._sampling_parameters(sampling)

    assert parameters["stop_token_ids"] == [3]
    assert parameters["ignore_eos"] is False
    assert (parameters["stop"], parameters["top_k"], parameters["sampling_seed"]) == (["x"], 4, 9)
    assert sglang._sampling_parameters(Sampling(max_new_tokens=5))["ignore_eos"] is True
    assert sglang._sampling_parameters(Sampling(max_new_tokens=5))["top_k"] == -1


def test_sampling_options_become_vllm_parameters() -> None:
    sampling = Sampling(max_new_tokens=5, stop_tokens=(3,), stop_strings=("x",), top_k=4, seed=9, json_schema="{}")
    parameters = vllm._sampling_parameters(sampling)

    assert (parameters["max_tokens"], parameters["stop_token_ids"]) == (5, [3])
    assert (parameters["stop"], parameters["top_k"], parameters["seed"]) == (["x"], 4, 9)
    assert parameters["structured_outputs"] == {"json": "{}"}
    assert parameters["detokenize"] is True


class Asked(Exception):
    """Body of a request, which is not answered."""


class Client:
    adapter = ""

    async def post(self, path: str, body: dict[str, Any], **_: Any) -> Any:
        raise Asked(body)


async def body(dialect: Dialect, **options: Any) -> dict[str, Any]:
    """Returns the request for two answers."""
    launch(dialect, CPU)
    sampling = Sampling(max_new_tokens=5, **options)
    with pytest.raises(Asked) as refused:
        await dialect.generate(cast("ServerClient", Client()), ["a", "b"], np.array([1], np.int32), sampling)
    request: dict[str, Any] = refused.value.args[0]
    return request


@pytest.mark.anyio
async def test_sglang_is_asked_for_candidates_as_arrays_and_with_filters_for_what_they_kept() -> None:
    dialect = sglang.SglangDialect()
    assert "top_logprobs_num" not in await body(dialect)
    whole = await body(dialect, top_tokens=5)
    assert (whole["top_logprobs_num"], whole["return_flat_raw_top_logprobs_b64"]) == (5, True)
    assert (await body(dialect, top_tokens=2 * VOCABULARY))["top_logprobs_num"] == VOCABULARY

    for filters in ({"top_p": 0.9}, {"min_p": 0.1}, {"temperature": 0.0}, {"top_k": 9000}):
        cut = await body(dialect, top_tokens=5, **filters)
        assert (cut["return_sampling_mask"], cut["sampling_logprobs_mode"]) == (True, "support")
        assert cut["sampling_params"]["top_k"] == 4000, "SGLang returns finite sets only"
    assert (await body(dialect, top_tokens=5, top_k=7))["sampling_params"]["top_k"] == 7
    assert "return_sampling_mask" not in await body(dialect, top_p=0.9)
    assert (await body(dialect, top_k=7, with_support=True))["return_sampling_mask"]


@pytest.mark.anyio
async def test_vllm_is_asked_for_one_candidate_more_within_what_it_returns() -> None:
    dialect = vllm.VllmDialect()
    counts = [(await body(dialect, top_tokens=count))["sampling_params"]["logprobs"] for count in (0, 5, VOCABULARY)]

    assert counts == [0, 6, int(value(launch(dialect, CPU), "--max-logprobs"))]
    kept = await body(dialect, top_k=7, with_support=True)
    assert kept["sampling_params"]["logprobs"] > 7, "all tokens that are as likely as the last one are kept"


@pytest.mark.parametrize("environment", [CPU, CUDA], ids=["cpu", "cuda"])
def test_recurrent_states_are_kept_in_float32(environment: Environment) -> None:
    by_vllm = launch(vllm.VllmDialect(), environment)
    by_sglang = launch(sglang.SglangDialect(), environment, dtype="float32")

    assert value(by_vllm, "--mamba-ssm-cache-dtype") == "float32"
    assert by_sglang.variables["SGLANG_MAMBA_SSM_DTYPE"] == "float32"
    assert by_sglang.variables["SGLANG_MAMBA_CONV_DTYPE"] == "float32"
