"""Chat formats of the package `renderers`: whole prompts, bridges, and what policies wrote."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.models.answer_texts import answer_parts
from astraflow.models.huggingface import adapted_tokenizer
from astraflow.models.huggingface_tokenizers import HuggingFaceTokenizer
from astraflow.models.tokenizers import Message, ToolSchema
from tests.errors import raises_code
from tests.fakes.chat_templates import CHATML, tokenizer, words_tokenizer

EMPTY = np.empty(0, dtype=np.int32)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
ADD: ToolSchema = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}},
}


def message(role: str, text: str) -> Message:
    return {"role": role, "content": text}


def qwen3(renderer: str = "qwen3", **values: bool) -> HuggingFaceTokenizer:
    """Returns a tokenizer with the special tokens of Qwen3."""
    core = deepcopy(words_tokenizer())
    core.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]})
    core.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"])
    core.chat_template = CHATML
    return adapted_tokenizer(core, vocab_size=1000, stop_tokens=(0,), template_values=values, renderer=renderer)


def text_of(source: HuggingFaceTokenizer, tokens: Any) -> str:
    return source.decode(tokens, keep_special_tokens=True)


def test_a_bridge_continues_the_exact_tokens() -> None:
    source = qwen3()
    end = source.stop_tokens[0]
    prompt = source.encode_chat([message("system", "s"), message("user", "1+2?")], tools=(ADD,))
    assert text_of(source, prompt).endswith("<|im_end|>\n<|im_start|>assistant\n")
    answer = np.append(source.encode(f"<think>\nhm\n</think>\n\n{CALL}"), np.int32(end)).astype(np.int32)
    parts = answer_parts(source.answer_text(prompt, answer, tools=(ADD,)))
    assert (parts.thought, [call.name for call in parts.calls]) == ("hm", ["add"])
    bridge = source.bridge(prompt, answer, [message("tool", "3 <|im_end|>")], tools=(ADD,))
    assert text_of(source, bridge) == (
        "\n<|im_start|>user\n<tool_response>\n3 <|im_end|>\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert np.count_nonzero(bridge == end) == 1
    cut = source.bridge(prompt, answer[:-1], [message("tool", "3 <|im_end|>")], tools=(ADD,))
    assert cut.tolist() == [end, *bridge.tolist()]


def test_an_answer_that_ended_within_a_thought_goes_on() -> None:
    source = qwen3()
    prompt = source.encode_chat([message("user", "?")])
    answer = np.append(source.encode("<think>\nhm"), np.int32(source.stop_tokens[0])).astype(np.int32)
    bridge = source.bridge(prompt, answer, [message("user", "go on")])
    assert text_of(source, bridge) == "\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"


def test_answers_that_were_not_sampled_are_written_as_answers() -> None:
    source = qwen3()
    prompt = source.encode_chat([message("user", "?")])
    answer = source.encode_answer("a")
    assert (answer[-1], text_of(source, answer)) == (source.stop_tokens[0], "<think>\n\n</think>\n\na<|im_end|>")
    messages = [message("user", "b"), message("assistant", f"edited\n{CALL}"), message("user", "c")]
    text = text_of(source, source.bridge(prompt, answer, messages, tools=(ADD,)))
    assert text.startswith("\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n")
    assert '"name": "add"' in text and text.endswith("user\nc<|im_end|>\n<|im_start|>assistant\n")
    with raises_code(InvalidInput, "model.renderer_refused", "qwen3"):
        source.bridge(prompt, answer, [message("assistant", "x"), message("assistant", "y")])


def test_calls_that_do_not_parse_stay_content() -> None:
    source = qwen3()
    broken = "<tool_call>no</tool_call>"
    assert source.answer_text(EMPTY, source.encode(f"a {broken}"), tools=(ADD,)) == f"a\n{broken}"
    parts = answer_parts(source.answer_text(EMPTY, source.encode(CALL)))
    assert (parts.content, [call.name for call in parts.calls]) == ("", ["add"])


@pytest.mark.parametrize("name", ["nothing", "default", "llama-3"])
def test_a_renderer_that_does_not_work_with_the_tokenizer_is_refused(name: str) -> None:
    with raises_code(InvalidInput, "model.unusable_renderer", name):
        qwen3(name)


def test_a_renderer_whose_frame_depends_on_special_tokens_in_texts_is_refused() -> None:
    with raises_code(InvalidInput, "model.unusable_renderer", "qwen3"):
        adapted_tokenizer(
            tokenizer(CHATML).pretrained, vocab_size=1000, stop_tokens=(0,), template_values={}, renderer="qwen3"
        )


def test_the_renderer_begins_an_answer_as_the_model_is_set() -> None:
    prompt = qwen3(enable_thinking=False).encode_chat([message("user", "?")])
    assert text_of(qwen3(), prompt).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
