"""Model classes that the server programs list, so that a recipe with another one is told before its nodes start.

Read in the installed packages: `EntryClass` of SGLang's modules, the registry of vLLM. The releases are those that
AstraFlow installs; older ones lack routes that it calls. vLLM 0.33.0, which only runs on GPUs, was not read.
"""

from collections.abc import Mapping
from dataclasses import dataclass

_BOTH = """
Afmoe Apertus Arcee Cohere Cohere2 Cohere2Moe Dbrx DeepseekV2 DeepseekV3 DeepseekV32 DeepseekV4 Ernie4_5_Moe Exaone4
ExaoneMoe FalconH1 FalconMamba GPTBigCode GPTJ Gemma Gemma2 Gemma3 Gemma3n Gemma4 Glm4 Glm4Moe Glm4MoeLite GlmMoeDsa
GptOss Granite GraniteMoe GraniteMoeHybrid GraniteMoeShared HunYuanDenseV1 HunYuanMoEV1 KimiLinear Lfm2 Lfm2Moe Llama
Llama4 LongcatFlash Mamba Mamba2 MiMoV2Flash MiniCPM3 MiniMaxM2 Ministral3 Mistral Mixtral NemotronH OPT Olmo Olmo2
Olmoe Phi Phi3 Qwen2 Qwen2Moe Qwen3 Qwen3Moe Qwen3Next Qwen3_5 Qwen3_5Moe StableLm Starcoder2
"""
"""Names of listed classes, without `ForCausalLM`."""
_SGLANG = "Persimmon Zaya"
_VLLM = """
Bloom Ernie4_5 Falcon FlexOlmo GPTNeoX Glm Jais2 Jamba Nemotron Olmo3 OlmoHybrid SeedOss SmolLM3 VaultGemma Zamba2
"""
_WITH_IMAGES = ["Gemma3", "Gemma4", "Llama4", "Qwen3_5", "Qwen3_5Moe"]
"""Families whose checkpoints may name the class with an image encoder, which both programs list too."""
_RUN_HERE = frozenset({"Qwen3ForCausalLM"})
_STAND_IN = "the program's generic implementation may serve it"

_NOTES: Mapping[str, Mapping[str, str]] = {
    "GptOssForCausalLM": {
        "sglang": "needs an attention backend with sinks (chosen on GPUs from Ampere on; a CPU needs AMX)",
    },
    "Lfm2ForCausalLM": {"sglang": "does not start with --attention-backend triton"},
    "Lfm2MoeForCausalLM": {"sglang": "does not start with --attention-backend triton"},
}
"""Requirements of a program for a class, beyond what the engines set themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSupport:
    """Support of a class of models by a server program."""

    release: str
    """Lowest release of the program that AstraFlow drives and whose list was read."""
    is_listed: bool
    is_run_here: bool
    """True if the authors have compared its logprobs with the trainer's."""
    note: str
    """Requirement or reservation, for a person; empty for none."""


def server_support(kind: str, architecture: str) -> ServerSupport | None:
    """Returns what is known of the engine `kind` and a class such as `Qwen3_5ForCausalLM`; None for other engines.

    >>> server_support("sglang", "GptOssForCausalLM").is_listed
    True
    """
    if kind not in _LISTED:
        return None
    release, listed = _LISTED[kind]
    is_listed = architecture in listed
    reservation = "" if architecture in _RUN_HERE else "not run by the authors"
    notes = [_NOTES.get(architecture, {}).get(kind, ""), "" if is_listed else _STAND_IN, reservation]
    return ServerSupport(
        release=release,
        is_listed=is_listed,
        is_run_here=architecture in _RUN_HERE,
        note="; ".join(filter(None, notes)),
    )


def _classes(families: str) -> frozenset[str]:
    with_images = [f"{family}ForConditionalGeneration" for family in _WITH_IMAGES]
    return frozenset([*(f"{family}ForCausalLM" for family in f"{_BOTH} {families}".split()), *with_images])


_LISTED: Mapping[str, tuple[str, frozenset[str]]] = {
    "sglang": ("0.5.23", _classes(_SGLANG)),
    "vllm": ("0.32.0", _classes(_VLLM)),
}
