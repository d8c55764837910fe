"""Answers of both servers are parsed, and invalid ones refused."""

import base64
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astraflow.contract.errors import CorruptData
from astraflow.contract.ids import Version
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, VersionSpan
from astraflow.contract.rollouts.token_columns import TokenColumn
from astraflow.raas.engines.server import sglang, vllm
from astraflow.raas.engines.server.formats import parse_metrics, version_spans
from tests.errors import raises_code


def spans(*parts: tuple[int, int, int]) -> list[dict[str, Any]]:
    return [{"version": str(version), "start": start, "end": end} for version, start, end in parts]


def test_adjacent_spans_of_one_version_are_joined_and_empty_ones_dropped() -> None:
    joined = version_spans(spans((1, 0, 2), (1, 2, 3), (2, 3, 3), (3, 3, 9)), 5)

    assert joined == (VersionSpan(version=Version(1), length=3), VersionSpan(version=Version(3), length=2))
    assert version_spans(None, 0) == ()


def test_a_span_with_an_unknown_version_is_refused() -> None:
    with pytest.raises(ValueError, match="default"):
        version_spans([{"version": "default", "start": 0, "end": 1}], 1)


def test_metrics_are_summed_over_ranks_and_other_lines_ignored() -> None:
    text = """# HELP sglang:num_running_reqs requests
sglang:num_running_reqs{tp_rank="0"} 2.0
sglang:num_running_reqs{tp_rank="1"} 3.0
sglang:num_queue_reqs{tp_rank="0"} 4.0
sglang:token_usage{tp_rank="0"} 0.25
sglang:token_usage{tp_rank="1"} 1.5
sglang:generation_tokens_total{tp_rank="0"} 70.0
sglang:prompt_tokens_total{tp_rank="0"} 500.0
sglang:cached_tokens_total{cache_source="device"} 300.0
sglang:cached_tokens_total{cache_source="host"} 50.0
sglang:other{x="1"} 1.0
vllm:num_requests_running 9.0
"""
    load = parse_metrics(text, prefix="sglang:")

    assert (load.gauges.running, load.gauges.waiting, load.gauges.cache_used) == (5, 4, 1.0)
    assert (load.tokens_total, load.gauges.prompt_tokens, load.gauges.cached_tokens) == (70.0, 500, 350)
    assert (load.gauges.drafts, load.gauges.accepted_drafts) == (0, ())


def test_vllm_counts_accepted_drafts_by_position() -> None:
    text = """
vllm:spec_decode_num_drafts_total{engine="0"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 30.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 14.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="policy",position="0"} 8.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="policy",position="1"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="policy",position="2"} 2.0
vllm:spec_decode_num_accepted_tokens_per_pos_created{engine="0",model_name="policy",position="2"} 1.7e9
"""
    gauges = parse_metrics(text, prefix="vllm:").gauges

    assert (gauges.drafts, gauges.drafted_tokens, gauges.accepted_tokens) == (10, 30, 14)
    assert gauges.accepted_drafts == (8, 4, 2)


def test_the_size_of_the_cache_is_read() -> None:
    by_vllm = parse_metrics('vllm:cache_config_info{engine="0",kv_cache_size_tokens="4096"} 1.0', prefix="vllm:")
    assert by_vllm.gauges.cache_tokens == 4096
    unknown = parse_metrics('vllm:cache_config_info{engine="0",kv_cache_size_tokens="None"} 1.0', prefix="vllm:")
    assert unknown.gauges.cache_tokens == 0
    assert parse_metrics("sglang:max_total_num_tokens 512.0", prefix="sglang:").gauges.cache_tokens == 512


def test_sglang_counts_verifications_from_which_accepted_tokens_follow() -> None:
    text = """
sglang:generation_tokens_total{is_streaming="false"} 100
sglang:num_requests_total{is_streaming="false"} 4
sglang:spec_verify_calls_total 40
"""
    gauges = parse_metrics(text, prefix="sglang:", draft_tokens=3).gauges

    assert (gauges.drafts, gauges.drafted_tokens, gauges.accepted_tokens) == (40, 120, 56)
    assert parse_metrics(text.rsplit("\n", 2)[0], prefix="sglang:", draft_tokens=3).gauges.drafted_tokens == 0


def sglang_answer(**facts: Any) -> dict[str, Any]:
    return {
        "text": "",
        "output_ids": [7, 8],
        "meta_info": {
            "output_token_logprobs": [[-0.5, 7, None], [1e-7, 8, None]],
            "weight_versions": spans((4, 0, 2)),
            "finish_reason": {"type": "length", "length": 2},
            **facts,
        },
    }


def test_an_sglang_answer_is_parsed() -> None:
    generation = sglang.parse_generation(sglang_answer())

    assert generation.tokens.tolist() == [7, 8]
    assert generation.logprobs.tolist() == [-0.5, 0.0], "a rounding error above 0 is removed"
    assert generation.spans == (VersionSpan(version=Version(4), length=2),)
    assert generation.finish is Finish.LENGTH


def test_an_sglang_request_aborted_in_the_queue_has_no_tokens() -> None:
    answer = {"text": "", "output_ids": [], "meta_info": {"finish_reason": {"type": "abort", "message": "queue"}}}
    generation = sglang.parse_generation(answer)

    assert generation.finish is Finish.ABORT
    assert (len(generation.tokens), generation.spans) == (0, ())


@pytest.mark.parametrize(
    "answer",
    [
        {},
        [],
        "text",
        sglang_answer(output_token_logprobs=[[-0.5, 7, None]]),
        sglang_answer(output_token_logprobs=[[-0.5, 7, None], [-0.5, 9, None]]),
        sglang_answer(weight_versions=spans((4, 0, 1))),
        sglang_answer(weight_versions=[{"version": "default", "start": 0, "end": 2}]),
        sglang_answer(finish_reason={"type": "unknown"}),
        sglang_answer(finish_reason=None),
    ],
)
def test_invalid_answers_of_sglang_are_refused(answer: Any) -> None:
    with raises_code(CorruptData, "engine.invalid_answer", "SGLang"):
        sglang.parse_generation(answer)


TOP = Sampling(max_new_tokens=2, top_tokens=2)


def flat(**facts: Any) -> dict[str, Any]:
    """Returns an answer of SGLang with three candidates for each of two tokens."""
    ids, values = np.array([7, 1, 2, 3, 8, 4], "<i4"), np.array([-0.5, -1.5, -2, -0.25, -3, -np.inf], "<f4")
    fields = {
        "output_top_logprobs_idx_flat_b64": base64.b64encode(ids.tobytes()).decode(),
        "output_top_logprobs_val_flat_b64": base64.b64encode(values.tobytes()).decode(),
        "output_top_logprobs_shape": [2, 3],
    }
    return sglang_answer(**{**fields, **facts})


def assert_top(generation: Generation, ids: list[list[int]], values: list[list[float]]) -> None:
    np.testing.assert_array_equal(generation.columns[TokenColumn.TOP_TOKENS], ids)
    np.testing.assert_array_equal(generation.columns[TokenColumn.TOP_LOGPROBS], values)


def test_the_candidates_of_an_sglang_answer_are_the_most_likely_ones() -> None:
    assert_top(sglang.parse_generation(flat(), TOP), [[7, 1], [3, 8]], [[-0.5, -1.5], [-0.25, -3]])
    wide = sglang.parse_generation(flat(), replace(TOP, top_tokens=9))
    assert_top(wide, [[7, 1, 2], [3, 8, -1]], [[-0.5, -1.5, -2], [-0.25, -3, -np.inf]])


def test_an_sglang_answer_with_filters_has_the_logprobs_of_what_they_kept() -> None:
    kept = {
        "output_token_sampling_mask": [[7], [3, 8, 4]],
        "output_token_sampling_logprobs": [[0.0], [-0.5, -1.25, -2]],
    }
    generation = sglang.parse_generation(sglang_answer(**kept), replace(TOP, top_p=0.9))

    assert generation.logprobs.tolist() == [0.0, -1.25]
    assert_top(generation, [[7, -1], [3, 8]], [[0, -np.inf], [-0.5, -1.25]])


def test_the_kept_sets_of_both_servers_hold_every_token_that_could_be_sampled() -> None:
    sampling = Sampling(max_new_tokens=2, top_k=2, with_support=True)
    masks = {"output_token_sampling_mask": [[7], [3, 8, 4]], "output_token_sampling_logprobs": [[0.0], [-1.0, -1, -2]]}
    by_sglang = sglang.parse_generation(sglang_answer(**masks), sampling)
    content = [position((7, 0.0), (1, -9999.0), (2, -9999.0), (5, -9999.0)), position((8, -1.0), (3, -1.0), (4, -2.0))]
    answer = vllm_answer(logprobs={"content": content})
    (by_vllm,) = vllm.parse_generations(answer, sampling, vocabulary=100)

    for generation in (by_sglang, by_vllm):
        assert set(generation.columns) == {TokenColumn.SUPPORT}
        assert [set(row) for row in generation.columns[TokenColumn.SUPPORT].tolist()] == [{7, -1}, {3, 8, 4}]
    assert by_sglang.logprobs.tolist() == by_vllm.logprobs.tolist() == [0.0, -1.0]


def test_kept_sets_that_may_be_larger_than_what_vllm_returned_are_refused() -> None:
    sampling = Sampling(max_new_tokens=2, top_k=2, with_support=True)
    content = [position((7, -0.5), (1, -1.0)), position((8, -0.25), (3, -2.0))]
    answer = vllm_answer(logprobs={"content": content})
    with raises_code(CorruptData, "engine.invalid_answer", "vLLM"):
        vllm.parse_generations(answer, sampling, vocabulary=100)
    (whole,) = vllm.parse_generations(answer, sampling, vocabulary=2)
    assert whole.columns[TokenColumn.SUPPORT].shape == (2, 2)


@pytest.mark.parametrize(
    ("answer", "sampling"),
    [
        (sglang_answer(), TOP),
        (flat(output_top_logprobs_shape=[1, 6]), TOP),
        (flat(output_top_logprobs_shape=[2, 2]), TOP),
        (flat(output_top_logprobs_idx_flat_b64="!"), TOP),
        (sglang_answer(), replace(TOP, top_k=2)),
        (
            sglang_answer(output_token_sampling_mask=[[7], [3]], output_token_sampling_logprobs=[[0.0], [0.0]]),
            replace(TOP, top_k=2),
        ),
    ],
)
def test_invalid_candidates_of_sglang_are_refused(answer: Any, sampling: Sampling) -> None:
    with raises_code(CorruptData, "engine.invalid_answer", "SGLang"):
        sglang.parse_generation(answer, sampling)


def vllm_answer(**facts: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "token_ids": [7, 8],
        "logprobs": {"content": [{"token_id": 7, "logprob": -0.5}, {"token_id": 8, "logprob": -1.5}]},
        "weight_versions": spans((1, 0, 1), (2, 1, 2)),
        "routed_experts": None,
        **facts,
    }
    return {"request_id": "a", "choices": [choice]}


def test_a_vllm_answer_is_parsed() -> None:
    (generation,) = vllm.parse_generations(vllm_answer())

    assert generation.tokens.tolist() == [7, 8]
    assert generation.logprobs.tolist() == [-0.5, -1.5]
    assert [(span.version, span.length) for span in generation.spans] == [(1, 1), (2, 1)]
    assert generation.finish is Finish.STOP


def position(*candidates: tuple[int, float]) -> dict[str, Any]:
    entries = [{"token_id": candidate, "logprob": logprob, "rank": 1} for candidate, logprob in candidates]
    return {**entries[0], "top_logprobs": entries}


def test_the_candidates_of_a_vllm_answer_are_the_most_likely_ones() -> None:
    content = [position((7, -3.0), (1, -0.5), (2, -1.5)), position((8, -0.25), (3, -9999.0))]
    answer = vllm_answer(logprobs={"content": content})

    (generation,) = vllm.parse_generations(answer, TOP)
    assert generation.logprobs.tolist() == [-3.0, -0.25]
    assert_top(generation, [[1, 2], [8, -1]], [[-0.5, -1.5], [-0.25, -np.inf]])
    (greedy,) = vllm.parse_generations(answer, replace(TOP, temperature=0.0))
    assert greedy.logprobs.tolist() == [0.0, 0.0]
    assert_top(greedy, [[7, -1], [8, -1]], [[0, -np.inf], [0, -np.inf]])


def test_a_vllm_answer_without_the_requested_candidates_is_refused() -> None:
    with raises_code(CorruptData, "engine.invalid_answer", "vLLM"):
        vllm.parse_generations(vllm_answer(), TOP)
    empty = [{**position((token, -1.0)), "top_logprobs": []} for token in (7, 8)]
    with raises_code(CorruptData, "engine.invalid_answer", "vLLM"):
        vllm.parse_generations(vllm_answer(logprobs={"content": empty}), TOP)


def test_a_vllm_request_aborted_before_its_first_token_has_no_tokens() -> None:
    answer = vllm_answer(finish_reason="abort", token_ids=[], logprobs=None, weight_versions=None)
    (generation,) = vllm.parse_generations(answer)

    assert generation.finish is Finish.ABORT
    assert len(generation.tokens) == 0


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"choices": []},
        "text",
        vllm_answer(logprobs=None),
        vllm_answer(weight_versions=None),
        vllm_answer(finish_reason="unknown"),
    ],
)
def test_invalid_answers_of_vllm_are_refused(answer: Any) -> None:
    with raises_code(CorruptData, "engine.invalid_answer", "vLLM"):
        vllm.parse_generations(answer)
