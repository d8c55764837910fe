"""Page of the plugins: all kinds of all slots, from their registries."""

from collections.abc import Iterator
from functools import partial

from docs.generate.page import Page, anchor, first_sentence, options_table, table
from docs.generate.plugin_slots import SLOTS, PluginSlot


def _body(*, with_heavy: bool = True) -> Iterator[str]:
    yield from overview()
    for slot in SLOTS:
        yield from (f"\n## {slot.heading}\n", slot.where, "")
        kinds = [kind for kind in slot.registry.built_in_kinds() if with_heavy or not slot.registry.is_heavy(kind)]
        yield from table(("kind", "purpose"), (purpose_row(slot, kind) for kind in kinds))
        for kind in kinds:
            yield from options_of(slot, kind)


def overview() -> list[str]:
    """Returns the table of all kinds. Imports no plugin."""
    return table(("slot", "kinds"), ((f"[{slot.heading}](#{anchor(slot.heading)})", _listed(slot)) for slot in SLOTS))


def _listed(slot: PluginSlot) -> str:
    return ", ".join(f"`{kind}`" for kind in slot.registry.built_in_kinds())


def purpose_row(slot: PluginSlot, kind: str) -> tuple[str, str]:
    """Returns the row of a kind, with the first sentence of its documentation."""
    return f"`{kind}`", first_sentence(slot.registry.description(kind))


def options_of(slot: PluginSlot, kind: str) -> list[str]:
    """Returns the section with the options of a kind; no lines without options."""
    options = options_table(slot.registry.options(kind))
    return [f"\n### {slot.heading}: {kind}\n", *options] if options else []


PAGE = Page(name="plugins", body=_body)
QUICK = Page(name="plugins", body=partial(_body, with_heavy=False))
"""The page without the kinds whose import takes seconds (trackers, SDKs, the local engine): 16 s in a new process."""
