"""What is known of server programs and classes of models."""

import pytest
import transformers

from astraflow.raas.engines.server.families import server_support
from astraflow.raas.engines.server.installation.releases import CPU, find_release


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
def test_the_read_release_is_the_installed_one(kind: str) -> None:
    support = server_support(kind, "Qwen3ForCausalLM")

    assert support is not None
    assert support.release == find_release(kind, CPU).version
    assert (support.is_listed, support.is_run_here, support.note) == (True, True, "")


@pytest.mark.parametrize(
    ("architecture", "sglang", "vllm"),
    [
        ("Qwen3_5ForConditionalGeneration", True, True),
        ("Qwen3_5MoeForCausalLM", True, True),
        ("GptOssForCausalLM", True, True),
        ("OlmoHybridForCausalLM", False, True),
        ("ZayaForCausalLM", True, False),
        ("Lfm3ForCausalLM", False, False),
    ],
)
def test_classes_are_listed_by_program(architecture: str, sglang: bool, vllm: bool) -> None:
    support = [server_support(kind, architecture) for kind in ("sglang", "vllm")]

    assert [program is not None and program.is_listed for program in support] == [sglang, vllm]
    assert all(program is not None and program.note and not program.is_run_here for program in support)


def test_listed_classes_are_classes_of_transformers() -> None:
    from astraflow.raas.engines.server.families import _LISTED

    names = set.union(*(set(classes) for _, classes in _LISTED.values()))
    assert not {name for name in names if not hasattr(transformers, name)}


def test_engines_without_a_server_program_have_no_list() -> None:
    assert server_support("local_torch", "Qwen3ForCausalLM") is None
