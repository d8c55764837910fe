"""Page of the plugins: all kinds of all slots, from their registries."""

from collections.abc import Iterator

from docs.generate.page import Page, anchor, first_sentence, options_table, table
from docs.generate.plugin_slots import SLOTS, PluginSlot

_HEAD = """
A table of a recipe names a plugin by its `kind` and has the options of that kind beside it:
`reward = { kind = "exact_match" }`. Advantages, losses and corrections have a page of their own, with formulas:
[algorithms](algorithms.md). Your own plugins register in the same way: [your own task](../tutorials/your-own-task.md).
"""


def _body() -> Iterator[str]:
    yield from table(("slot", "kinds"), map(_overview, SLOTS))
    for slot in SLOTS:
        yield from (f"\n## {slot.heading}\n", slot.where, "")
        kinds = slot.registry.kinds()
        yield from table(
            ("kind", "purpose"), ((f"`{kind}`", first_sentence(slot.registry.description(kind))) for kind in kinds)
        )
        for kind in kinds:
            if own := options_table(slot.registry.options(kind)):
                yield from (f"\n### {slot.heading}: {kind}\n", *own)


def _overview(slot: PluginSlot) -> tuple[str, str]:
    kinds = ", ".join(f"`{kind}`" for kind in slot.registry.kinds())
    return f"[{slot.heading}](#{anchor(slot.heading)})", kinds


PAGE = Page(name="plugins", title="Which plugins are there, and which options do they have?", head=_HEAD, body=_body)
