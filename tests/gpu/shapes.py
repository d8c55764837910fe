"""Models and batches of the benchmarks, by device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.trainer_step.rows import LARGE_VOCABULARY

Groups = Sequence[tuple[int, Sequence[int]]]

QWEN3 = {"head_dim": 128, "num_key_value_heads": 8, "max_position_embeddings": 40_960}
UNEVEN_LENGTHS = (480, 700, 950, 1200, 1500, 1900, 2300, 2700, 3100, 3600, 4200, 4900, 5700, 6600, 7700, 9000)
"""Lengths of answers as a model that thinks for long writes them."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of the benchmarks on one kind of device."""

    vocabulary: int
    shapes: Mapping[str, dict[str, Any]]
    """Options of Qwen3, by name."""
    rows: Mapping[str, Groups]
    """Groups of a batch by name: length of the prompt, and lengths of the answers."""
    micro_batch_tokens: Mapping[str, int]
    """By shape: as many as fit without computing activations again."""
    loops: Mapping[str, Mapping[str, Any]]
    """Further options of the local engine, by the name of the loop; `bare` and `trl` have none."""
    optimizer: Mapping[str, Mapping[str, Any]]
    """Options of the local engine's optimizer, by shape."""
    published_mb: Sequence[int]
    repeats: int


GPU = Sizes(
    vocabulary=LARGE_VOCABULARY,
    shapes={
        "Qwen3-1.7B": {
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "tie_word_embeddings": True,
            **QWEN3,
        },
        "Qwen3-8B": {
            "hidden_size": 4096,
            "intermediate_size": 12_288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "tie_word_embeddings": False,
            **QWEN3,
        },
    },
    rows={
        "4k": [(512, [3584])] * 16,
        "16k": [(512, [15_872])] * 4,
        "32k": [(512, [32_256])] * 2,
        "uneven": [(512, [length]) for length in UNEVEN_LENGTHS],
        "8 x (3k + 1k), shared": [(3072, [1024] * 8)] * 4,
        "8 x (3k + 1k), not shared": [(3072, [1024])] * 32,
    },
    micro_batch_tokens={"Qwen3-1.7B": 16_384, "Qwen3-8B": 4096},
    loops={
        "local": {},
        "local, compiled": {"compile_blocks": True},
        "local, compiled, full": {"compile_blocks": True, "recompute": "full"},
        "local, compiled, float8": {"compile_blocks": True, "float8": True},
        "bare": {},
        "trl": {},
    },
    optimizer={"Qwen3-8B": {"moments_dtype": "uint8"}},
    published_mb=(1024, 3440),
    repeats=5,
)

_SMALL = {"head_dim": 32, "num_key_value_heads": 2, "max_position_embeddings": 2048}
CPU = Sizes(
    vocabulary=512,
    shapes={
        "small, tied": {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "tie_word_embeddings": True,
            **_SMALL,
        },
        "small, untied": {
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "tie_word_embeddings": False,
            **_SMALL,
        },
    },
    rows={
        "64": [(8, [56])] * 16,
        "256": [(8, [248])] * 4,
        "512": [(8, [504])] * 2,
        "uneven": [(8, [length // 32]) for length in UNEVEN_LENGTHS],
        "8 x (96 + 32), shared": [(96, [32] * 8)] * 4,
        "8 x (96 + 32), not shared": [(96, [32])] * 32,
    },
    micro_batch_tokens={"small, tied": 1024, "small, untied": 1024},
    loops={"local": {}, "local, full": {"recompute": "full"}, "local, float8": {"float8": True}, "bare": {}, "trl": {}},
    optimizer={"small, untied": {"moments_dtype": "uint8"}},
    published_mb=(64,),
    repeats=3,
)


def sizes_of(device: str) -> Sizes:
    """Returns the sizes for a device: `cpu`, or the name of a GPU."""
    return CPU if device == "cpu" else GPU
