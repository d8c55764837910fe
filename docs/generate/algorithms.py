"""Page of the algorithms, from the registries of advantages, losses and corrections."""

import re
from collections.abc import Iterator
from typing import Any

from astraflow.algorithms.base import advantages, token_advantages
from astraflow.algorithms.config import AlgorithmConfig, CriticConfig
from astraflow.algorithms.corrections import corrections
from astraflow.algorithms.losses import losses
from astraflow.algorithms.losses.options import AggregationOptions, AnchoredOptions, PolicyOptions
from astraflow.runtime.plugins import Registry
from docs.generate.page import Page, options_table, table


def _kinds(options: type) -> str:
    """Returns the losses that have these options."""
    kinds = [f"`{kind}`" for kind in losses.built_in_kinds() if issubclass(losses.options(kind), options)]
    return f"{', '.join(kinds[:-1])} and {kinds[-1]}"


_SECTIONS: tuple[tuple[str, str, Registry[Any]], ...] = (
    ("Advantages", "List `advantages`: from rewards to advantages of trajectories.", advantages),
    ("Token advantages", "List `token_advantages`: advantages of single tokens.", token_advantages),
    ("Losses", f"Table `loss`. {_kinds(PolicyOptions)} have the options of policy losses below.", losses),
    ("Corrections", "List `corrections` of a policy loss: factors of the objective, multiplied.", corrections),
)
_SHARED = (AggregationOptions, PolicyOptions, AnchoredOptions)


def _body() -> Iterator[str]:
    yield from ("## Algorithm\n", *options_table(AlgorithmConfig), "\n### critic\n", *options_table(CriticConfig))
    for title, text, registry in _SECTIONS:
        yield from (f"\n## {title}\n", text, "")
        yield from table(
            ("kind", "formula", "source", "purpose"), (_row(registry, kind) for kind in registry.built_in_kinds())
        )
        for kind in registry.built_in_kinds():
            if own := options_table(registry.options(kind), without=_SHARED):
                yield from (f"\n### {title.lower()}: {kind}\n", *own)
    yield from (
        "\n## Aggregation\n",
        f"Options of {_kinds(AggregationOptions)}.",
        "",
        *options_table(AggregationOptions),
    )
    yield from ("\n## Options of policy losses\n", *options_table(PolicyOptions, without=(AggregationOptions,)))
    yield from ("\n## Anchor\n", f"Option of {_kinds(AnchoredOptions)}.", "")
    yield from options_table(AnchoredOptions, without=(PolicyOptions,))


def _row(registry: Registry[Any], kind: str) -> tuple[str, str, str, str]:
    text = registry.description(kind)
    return f"`{kind}`", _part(text, "Formula"), _part(text, "Source"), text.split("\n", 1)[0]


def _part(text: str, label: str) -> str:
    """Returns the text from `label:` to the next label or the end of the paragraph."""
    matched = re.search(rf"^{label}: (.*?)(?=^\w+: |^\s*$|\Z)", text, flags=re.M | re.S)
    return matched[1].rstrip().removesuffix(".") if matched else ""


PAGE = Page(name="algorithms", body=_body, is_committed=True)
