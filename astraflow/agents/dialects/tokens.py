"""Dialect of `POST /inference/v1/generate`, for clients that render prompts themselves.

Requests and answers are those of vLLM 0.32. Each log probability also carries `token`, which the client of the package
`renderers` requires.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from astraflow.agents.calls import CallOptions, CallRefused, ReplyFinish, TokenCall, TokenReply
from astraflow.agents.dialects import fields
from astraflow.agents.dialects.chat import refuse_several
from astraflow.agents.dialects.dialect import CallContext, InvalidCall, Json, ParsedCall, event, openai_error
from astraflow.contract.rollouts.trajectories import Int32Array

_UNSUPPORTED = {
    "features": "send text prompts",
    "content_parts": "send text prompts",
    "kv_transfer_params": "leave it out",
    "ec_transfer_params": "leave it out",
}
_UNSUPPORTED_SAMPLING = {
    "prompt_logprobs": "leave it out",
    "structured_outputs": "leave it out",
    "allowed_token_ids": "leave it out",
    "logit_bias": "leave it out",
    "bad_words": "leave it out",
}


class TokensDialect:
    """vLLM's route for exact tokens."""

    name = "tokens"

    def parse(self, body: Json, context: CallContext) -> ParsedCall[TokenCall]:
        """Returns the request. Raises: CallRefused."""
        sampling = fields.mapping(body, "sampling_params") or {}
        fields.refuse_fields(body, _UNSUPPORTED)
        fields.refuse_fields(sampling, _UNSUPPORTED_SAMPLING)
        refuse_several(sampling)
        _check_answer_fields(body)
        if fields.text(body, "output_mode", default="tokens") != "tokens":
            fields.refuse_fields(body, {"output_mode": "decode the tokens in the client"})
        options = CallOptions(
            model=fields.text(body, "model"),
            max_tokens=fields.count(sampling, "max_tokens"),
            temperature=fields.number(sampling, "temperature", most=100.0),
            top_p=fields.number(sampling, "top_p", most=1.0),
            stop=fields.strings(sampling, "stop"),
            retry_key=context.retry_key,
            is_retry=context.is_retry,
        )
        prompt = _tokens(body.get("token_ids"), "token_ids")
        if not len(prompt):
            raise InvalidCall(
                "cannot continue the tokens: `token_ids` is empty; send at least one token", code="agent.no_tokens"
            )
        stops = _tokens(sampling.get("stop_token_ids") or [], "stop_token_ids").tolist()
        call = TokenCall(options=options, prompt=prompt, stop_tokens=tuple(stops))
        return ParsedCall(call=call, body=body, context=context, is_streaming=fields.flag(body, "stream"))

    def reply(self, parsed: ParsedCall[TokenCall], reply: TokenReply) -> Json:
        """Returns an answer with the sampled tokens, and their log probabilities if requested."""
        sampling = fields.mapping(parsed.body, "sampling_params") or {}
        tokens = reply.tokens.tolist()
        choice = {
            "index": 0,
            "finish_reason": "length" if reply.finish is ReplyFinish.LENGTH else "stop",
            "stop_reason": None,
            "token_ids": tokens,
            "logprobs": None if sampling.get("logprobs") is None else _logprobs(tokens, reply.logprobs.tolist()),
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": None,
        }
        return {
            "request_id": fields.text(parsed.body, "request_id") or reply.id,
            "model": parsed.call.options.model,
            "created": parsed.context.created_s,
            "output_mode": "tokens",
            "choices": [choice],
            "usage": {
                "prompt_tokens": len(parsed.call.prompt),
                "completion_tokens": len(tokens),
                "total_tokens": len(parsed.call.prompt) + len(tokens),
                "prompt_tokens_details": None,
            },
            "prompt_logprobs": None,
            "prompt_token_id_logprobs": None,
            "prompt_token_ids": _prompt_echo(parsed),
            "mm_placeholders": None,
            "metrics": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
        }

    def stream(self, parsed: ParsedCall[TokenCall], body: Json) -> Iterator[bytes]:
        """Yields one chunk with all tokens, one with the usage if requested, and the end."""
        head = {"request_id": body["request_id"], "output_mode": "tokens"}
        chunk = {**head, "usage": None, "choices": body["choices"]}
        if body["prompt_token_ids"] is not None:
            chunk["prompt_token_ids"] = body["prompt_token_ids"]
        yield event(chunk)
        if fields.includes_usage(parsed.body):
            yield event({**head, "choices": [], "usage": body["usage"]})
        yield b"data: [DONE]\n\n"

    def error(self, problem: CallRefused, status: int) -> Json:
        """Returns the body of an error."""
        return openai_error(problem, status)

    def stream_error(self, problem: CallRefused, status: int) -> bytes:
        return event(openai_error(problem, status)) + b"data: [DONE]\n\n"


def _check_answer_fields(body: Json) -> None:
    """Checks what the answer needs, before a reply is sampled and trained. Raises: InvalidCall."""
    fields.includes_usage(body)
    fields.text(body, "request_id")
    fields.flag(body, "return_token_ids")


def _tokens(values: object, name: str) -> Int32Array:
    """Returns token ids, int32 `[n]`. Raises: InvalidCall."""
    if not isinstance(values, list) or (values and set(map(type, values)) != {int}):
        raise InvalidCall(
            f"cannot use the field {name!r}: it is not a list of whole numbers; send token ids",
            code="agent.invalid_tokens",
        )
    if values and not 0 <= min(values) <= max(values) < 2**31:
        raise InvalidCall(
            f"cannot use the field {name!r}: token ids lie between 0 and 2147483647; correct them",
            code="agent.invalid_tokens",
        )
    return np.array(values, dtype=np.int32)


def _logprobs(tokens: Sequence[int], logprobs: Sequence[float]) -> Json:
    return {
        "content": [
            {"token_id": token, "token": f"token_id:{token}", "logprob": logprob, "rank": None, "top_logprobs": []}
            for token, logprob in zip(tokens, logprobs, strict=True)
        ]
    }


def _prompt_echo(parsed: ParsedCall[TokenCall]) -> list[int] | None:
    return parsed.call.prompt.tolist() if fields.flag(parsed.body, "return_token_ids") else None
