"""Chat templates of several families, and a tokenizer whose tokens span several characters."""

from functools import cache
from typing import Any

from astraflow.models.huggingface_tokenizers import HuggingFaceTokenizer
from astraflow.models.tokenizers import char_tokenizer

CHATML = """\
{%- if messages[0]['role'] != 'system' %}<|im_start|>system
You are helpful.<|im_end|>
{% endif -%}
{%- if tools %}<|im_start|>system
Functions, to be called as <tool_call>{"name": ..., "arguments": {...}}</tool_call>:
{%- for tool in tools %}
{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif -%}
{%- for message in messages %}
{%- if message['role'] == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1]['role'] != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\n' }}<tool_response>
{{ message['content'] + '\n' }}</tool_response>
{%- if loop.last or messages[loop.index0 + 1]['role'] != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
{%- else %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""As Qwen 2.5: default system message, results of tools in a user's turn."""
SMOLLM2 = """\
{%- for message in messages %}
{%- if loop.first and messages[0]['role'] != 'system' %}
{{- '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' }}
{%- endif %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""As SmolLM2: every role, and no place for tools."""
HEADERS = """\
{{- '<|pad|>' }}
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '<|unknown|>\n\n' + message['content'] | trim + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant<|unknown|>\n\n' }}{% endif %}"""
"""As Llama 3: a token at the begin, and contents without spaces around them."""
STRICT = """\
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{{- '<|im_start|>' + ('model' if message['role'] == 'assistant' else 'user') }}
{{- '\n' + message['content'] + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>model\n' }}{% endif %}"""
"""As Gemma: only user and assistant, in turn."""
THINKING = CHATML.replace("'<|im_start|>assistant\n'", "'<|im_start|>assistant\n<think>\n'")
"""As models that begin each answer with a thought, which their template does not repeat in the history."""
OPTIONAL_THINKING = CHATML.replace(
    "'<|im_start|>assistant\n'",
    "'<|im_start|>assistant\n' + ('<think>\n\n</think>\n\n' if enable_thinking is false else '')",
)
"""As Qwen 3: an empty thought begins the answer where thinking is off."""
FORGETFUL = """\
{%- for message in messages %}
{%- if message['role'] != 'assistant' or loop.last %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""Drops earlier answers."""


@cache
def words_tokenizer() -> Any:
    """Returns a byte-level BPE tokenizer with merges, so that token borders depend on the text around them."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    words = Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(words, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    core.decoder = decoders.ByteLevel()
    specials = ["<|pad|>", "<|unknown|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(
        ["assistant\n\nuser the answer is what? \n\n  im_start im_end tool response"] * 20, trainer
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", additional_special_tokens=specials[:3]
    )


def tokenizer(template: str, core: str = "words", **values: bool) -> HuggingFaceTokenizer:
    """Returns a tokenizer with the template, whose variables have the values."""
    base_tokenizer = words_tokenizer() if core == "words" else char_tokenizer()
    base_tokenizer.chat_template = template
    return HuggingFaceTokenizer(
        base_tokenizer, vocab_size=600, stop_tokens=(base_tokenizer.eos_token_id,), template_values=values
    )
