"""Chat templates of models that people train, and tokenizers with their special tokens.

Each template is written here, and behaves as the one of the model that it names: in what it puts around messages, what
it drops from earlier turns, what it adds before an answer, and what it refuses.
"""

from copy import deepcopy
from dataclasses import dataclass
from functools import cache

from astraflow.models.huggingface import adapted_tokenizer
from astraflow.models.huggingface_tokenizers import HuggingFaceTokenizer
from tests.fakes.chat_templates import words_tokenizer

_QWEN_TOOLS = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}Functions, to be called as <tool_call>{"name": ..., "arguments": ...}</tool_call>:
{%- for tool in tools %}
{{ tool | tojson }}{% endfor %}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif -%}
"""
_QWEN_RESULT = """\
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
"""
_QWEN3_BEGIN = "{%- if enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
QWEN3 = (
    _QWEN_TOOLS
    + """\
{%- set query = namespace(last=-1) %}
{%- for m in messages %}
{%- if m.role == 'user' and not m.content.startswith('<tool_response>') %}{% set query.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- set thought = m.content.split('</think>')[0].split('<think>')[-1].strip('\n') if '</think>' in m.content else '' %}
{%- set answer = m.content.split('</think>')[-1].lstrip('\n') %}
{{- '<|im_start|>assistant\n' }}
{%- if loop.index0 > query.last and (loop.last or thought) %}{{ '<think>\n' + thought + '\n</think>\n\n' }}{% endif %}
{{- answer + '<|im_end|>\n' }}
{%- elif m.role == 'tool' %}
"""
    + _QWEN_RESULT
    + """\
{%- elif not (loop.first and m.role == 'system') %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"""
    + _QWEN3_BEGIN
    + "{% endif %}"
)
"""As Qwen3: drops thoughts before the last question, and begins an answer with an empty thought if thinking is off."""
QWEN3_THINKING = QWEN3.replace(_QWEN3_BEGIN, "{{ '<think>\n' }}")
"""As Qwen3-Thinking-2507: begins each answer with a thought."""
QWEN35 = QWEN3_THINKING.replace(
    '<tool_call>{"name": ..., "arguments": ...}</tool_call>',
    "<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>",
)
"""As Qwen3.5 and Qwen3-Coder: calls between tags."""
QWQ = (
    _QWEN_TOOLS
    + """\
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{{- '<|im_start|>assistant\n' + m.content.split('</think>')[-1].lstrip('\n') + '<|im_end|>\n' }}
{%- elif m.role == 'tool' %}
"""
    + _QWEN_RESULT
    + """\
{%- elif not (loop.first and m.role == 'system') %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"""
)
"""As QwQ-32B: drops every earlier thought, and begins each answer with one."""
DEEPSEEK_R1 = """\
{%- set ns = namespace(system='', is_result=false) %}
{%- for m in messages %}{% if m.role == 'system' %}{% set ns.system = m.content %}{% endif %}{% endfor %}
{{- bos_token + ns.system }}
{%- for m in messages %}
{%- if m.role == 'user' %}{{ '<|User|>' + m.content }}{% set ns.is_result = false %}
{%- elif m.role == 'assistant' %}{{ '<|Assistant|>' + m.content.split('</think>')[-1] + '<|end_of_sentence|>' }}
{%- elif m.role == 'tool' %}{{ '<|tool_output|>' + m.content }}{% set ns.is_result = true %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt and not ns.is_result %}{{ '<|Assistant|><think>\n' }}{% endif %}"""
"""As DeepSeek-R1: drops earlier thoughts, does not describe tools, and begins no answer after their results."""
GPT_OSS = """\
{%- set ns = namespace(call='') %}
{{- '<|start|>system<|message|>You are ChatGPT.\nReasoning: medium\n\n# Valid channels: analysis, commentary, final.' }}
{{- '<|end|>' }}
{%- set has_system = messages[0].role == 'system' %}
{%- if has_system or tools %}
{{- '<|start|>developer<|message|>' }}
{%- if has_system %}{{ '# Instructions\n\n' + messages[0].content }}{% endif %}
{%- if tools %}{{ '# Tools\n\nnamespace functions {\n' }}
{%- for tool in tools %}{{ '// ' + tool.function.description + '\n' }}
{{- 'type ' + tool.function.name + ' = (_: any) => any;\n' }}
{%- endfor %}{{ '}' }}{% endif %}
{{- '<|end|>' }}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- if m.content and '<|channel|>' in m.content %}{{ raise_exception('use the field thinking') }}{% endif %}
{%- if m.tool_calls %}
{%- if m.thinking %}{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}
{%- set ns.call = m.tool_calls[0].function.name %}
{{- '<|start|>assistant to=functions.' + ns.call + '<|channel|>commentary json<|message|>' }}
{{- m.tool_calls[0].function.arguments | tojson + '<|call|>' }}
{%- elif loop.last and not add_generation_prompt %}
{%- if m.thinking %}{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|return|>' }}
{%- else %}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}
{%- set ns.call = '' %}{% endif %}
{%- elif m.role == 'tool' %}
{%- if not ns.call %}{{ raise_exception('a result without a call') }}{% endif %}
{{- '<|start|>functions.' + ns.call + ' to=assistant<|channel|>commentary<|message|>' }}
{{- m.content | tojson + '<|end|>' }}
{%- elif m.role == 'user' %}{{ '<|start|>user<|message|>' + m.content + '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""
"""As GPT-OSS (harmony): the policy writes the channels of its answer; results name the function that was called."""
LLAMA31 = """\
{{- bos_token + '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% set messages = messages[1:] %}{% endif %}
{{- '<|eot_id|>' }}
{%- if tools %}
{{- '<|start_header_id|>user<|end_header_id|>\n\nAnswer with {"name": function name, "parameters": arguments}.\n' }}
{%- for tool in tools %}{{ tool | tojson }}{% endfor %}
{{- messages[0].content | trim + '<|eot_id|>' }}{% set messages = messages[1:] %}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}{{ '<|start_header_id|>ipython<|end_header_id|>\n\n' + m.content | tojson + '<|eot_id|>' }}
{%- else %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""
"""As Llama 3.1: describes tools in the question, in a form of call of its own."""
GEMMA = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""
"""As Gemma 2: no system message, and user and model in turn."""
MISTRAL = """\
{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set messages = messages[1:] %}{% endif %}
{{- bos_token }}
{%- for m in messages %}
{%- if m.role not in ('user', 'assistant') or (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('roles must alternate') }}{% endif %}
{%- if m.role == 'user' %}
{%- if loop.last and tools %}{{ '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- if loop.last and system is defined %}{{ '[INST] ' + system + '\n\n' + m.content + '[/INST]' }}
{%- else %}{{ '[INST] ' + m.content + '[/INST]' }}{% endif %}
{%- else %}{{ ' ' + m.content + eos_token }}{% endif %}
{%- endfor %}"""
"""As Mistral-7B-Instruct-v0.3: puts the system message and the tools before the last question, wherever that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model's chat format."""

    template: str
    special: tuple[str, ...]
    """Special tokens; the last ones end an answer."""
    ends: int = 1
    marks: tuple[str, ...] = ()
    """Tokens that are in the vocabulary as such, and are not special."""
    values: tuple[tuple[str, bool], ...] = ()
    """Values of the template's variables."""
    has_tagged_calls: bool = False
    """The policy writes calls between tags."""
    begin: str = "<|im_start|>assistant\n"
    """Text with which the template begins an answer."""

    @property
    def begins_thinking(self) -> bool:
        """True if the template begins an answer with a thought."""
        return self.begin.endswith("<think>\n")

    @property
    def stop(self) -> str:
        """Text of the token that ends an answer."""
        return self.special[-self.ends]


_CHATML = ("<|im_start|>", "<|endoftext|>", "<|im_end|>")
_MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
FAMILIES = {
    "qwen3": Family(template=QWEN3, special=_CHATML, marks=_MARKS),
    "qwen3 without thinking": Family(
        template=QWEN3,
        special=_CHATML,
        marks=_MARKS,
        values=(("enable_thinking", False),),
        begin="<|im_start|>assistant\n<think>\n\n</think>\n\n",
    ),
    "qwen3-thinking-2507": Family(
        template=QWEN3_THINKING, special=_CHATML, marks=_MARKS, begin="<|im_start|>assistant\n<think>\n"
    ),
    "qwq": Family(template=QWQ, special=_CHATML, marks=_MARKS, begin="<|im_start|>assistant\n<think>\n"),
    "qwen3.5": Family(
        template=QWEN35, special=_CHATML, marks=_MARKS, begin="<|im_start|>assistant\n<think>\n", has_tagged_calls=True
    ),
    "qwen3 with special marks": Family(template=QWEN3, special=(*_MARKS, *_CHATML)),
    "deepseek-r1": Family(
        template=DEEPSEEK_R1,
        special=("<|User|>", "<|Assistant|>", "<|tool_output|>", "<|end_of_sentence|>"),
        marks=_MARKS,
        begin="<|Assistant|><think>\n",
    ),
    "gpt-oss": Family(
        template=GPT_OSS,
        special=("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"),
        ends=2,
        begin="<|start|>assistant",
    ),
    "llama-3.1": Family(
        template=LLAMA31,
        special=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        begin="<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "gemma-2": Family(template=GEMMA, special=("<start_of_turn>", "<end_of_turn>"), begin="<start_of_turn>model\n"),
    "mistral-v0.3": Family(
        template=MISTRAL,
        special=("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "</s>"),
        begin="[/INST]",
    ),
}


@cache
def family_tokenizer(name: str) -> HuggingFaceTokenizer:
    """Returns a tokenizer of byte pairs with the template and the special tokens of a family."""
    family = FAMILIES[name]
    core = deepcopy(words_tokenizer())
    core.add_special_tokens({"additional_special_tokens": list(family.special)})
    core.add_tokens(list(family.marks))
    core.eos_token, core.bos_token = family.special[-1], "<|pad|>"
    core.chat_template = family.template
    stops = core.convert_tokens_to_ids(list(family.special[-family.ends :]))
    return adapted_tokenizer(core, vocab_size=len(core), stop_tokens=tuple(stops), template_values=dict(family.values))
