"""Page with the table of families."""

from collections.abc import Sequence
from pathlib import Path

import transformers

from astraflow.trainer.engines.base import Batching
from benchmarks.model_families.configurations import FAMILIES, NOT_BUILT
from benchmarks.model_families.measure import Difference, FamilyResult

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "model-families.md"

_HEAD = """# Which families of models can be trained?

```
python -m benchmarks.model_families              # measures all of them, and writes this page
python -m benchmarks.model_families qwen3_5_text --figures
```

A batching says how the trainer computes the forward pass of trajectories. It is **exact** here when logprobs differ by
at most 1e-5 nats from those of every sequence alone, and the gradient by at most 1e-5 of its norm, or by no more than
three times what a change of the last bit of each weight makes. Each family is measured with a tiny model of random,
enlarged weights in float32 on a CPU: a group of three answers to one prompt, and a sequence without a group. `auto` is
what the trainer chooses at its start, when it checks the model itself.

`local_torch` is how the [engine](../how-to/engines.md) of that name batches the model: in `slots` of one cache, in
`lockstep` with a forward pass for each length, or by forward passes over whole sequences (`recomputed`). It says
**differs** where the logprobs that it generates are not those that the trainer computes.
"""


def page_text(results: Sequence[FamilyResult]) -> str:
    """Returns the page."""
    batchings = " | ".join(batching.value for batching in Batching)
    lines = [
        _HEAD,
        f"## Families of transformers {transformers.__version__}\n",
        f"| family | class | `auto` | {batchings} | `local_torch` |",
        "|---" * (4 + len(Batching)) + "|",
        *map(row, results),
        "\n## Families that are not measured\n",
        "| family | reason |",
        "|---|---|",
        *(f"| `{family}` | {reason} |" for family, reason in NOT_BUILT.items()),
        "",
    ]
    return "\n".join(lines)


def row(result: FamilyResult) -> str:
    """Returns the row of a family, without figures, which differ between processors."""
    choice = result.choice
    chosen = f"**{choice.value}**" if isinstance(choice, Batching) else f"refused: `{choice}`"
    exact = " | ".join(_cell(result, batching) for batching in Batching)
    return f"| `{result.family}` | {FAMILIES[result.family]} | {chosen} | {exact} | {_engine_cell(result)} |"


def _cell(result: FamilyResult, batching: Batching) -> str:
    if result.is_exact(batching):
        return "exact"
    return "differs" if isinstance(result.batchings.get(batching), Difference) else "-"


def _engine_cell(result: FamilyResult) -> str:
    if result.engine_difference is None:
        return f"`{result.engine}`" if result.engine else "-"
    return result.engine if result.engine_agrees else f"{result.engine}, differs"
