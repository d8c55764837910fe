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
    yield from overview()
    for slot in SLOTS:
        yield from (f"\n## {slot.heading}\n", slot.where, "")
        kinds = slot.registry.built_in_kinds()
        yield from table(("kind", "purpose"), (purpose_row(slot, kind) for kind in kinds))
        for kind in kinds:
            yield from options_of(slot, kind)


def overview() -> list[str]:
    """Returns the table of all kinds. Imports no plugin."""
    rows = (
        (
            f"[{slot.heading}](#{anchor(slot.heading)})",
            ", ".join(f"`{kind}`" for kind in slot.registry.built_in_kinds()),
        )
        for slot in SLOTS
    )
    return table(("slot", "kinds"), rows)


def purpose_row(slot: PluginSlot, kind: str) -> tuple[str, str]:
    """Returns the row of a kind, with the first sentence of its documentation."""
    return f"`{kind}`", first_sentence(slot.registry.description(kind))


def options_of(slot: PluginSlot, kind: str) -> list[str]:
    """Returns the section with the options of a kind; no lines without options."""
    options = options_table(slot.registry.options(kind))
    return [f"\n### {slot.heading}: {kind}\n", *options] if options else []


PAGE = Page(name="plugins", title="Which plugins are there, and which options do they have?", head=_HEAD, body=_body)
