"""Pages of the shop as text, as WebShop shows them to agents: elements separated by [SEP]."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astraflow.datasets.worlds.webshop_store import Product

BACK, NEXT, PREVIOUS, BUY = "Back to Search", "Next >", "< Prev", "Buy Now"
DETAILS = ("Description", "Features", "Reviews")
PRODUCTS_PER_PAGE = 10
_MAX_TEXT_CHARACTERS = 10_000
"""Longest description or list of features."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page: its text, and the texts that can be clicked."""

    elements: tuple[str, ...]
    clickable: tuple[str, ...]
    has_search: bool = False

    @property
    def text(self) -> str:
        """Elements in a line."""
        return " [SEP] ".join(self.elements)

    @property
    def actions(self) -> tuple[str, ...]:
        """Actions that are possible; `search[KEYWORDS]` takes any keywords."""
        clicks = tuple(f"click[{name.lower()}]" for name in self.clickable)
        return (*(["search[KEYWORDS]"] if self.has_search else []), *clicks)


def start_page(instruction: str) -> Page:
    """Returns the page with the search field."""
    return Page(elements=("WebShop", "Instruction:", instruction, "Search"), clickable=(), has_search=True)


def results_page(instruction: str, products: Sequence[Product], number: int) -> Page:
    """Returns page `number` (from 1) of search results."""
    shown = products[(number - 1) * PRODUCTS_PER_PAGE : number * PRODUCTS_PER_PAGE]
    links = [BACK]
    if number > 1:
        links.append(PREVIOUS)
    if number * PRODUCTS_PER_PAGE < len(products):
        links.append(NEXT)
    rows = [text for product in shown for text in (product.asin, product.title, product.price_tag)]
    total = f"Page {number} (Total results: {len(products)})"
    elements = ("Instruction:", instruction, links[0], total, *links[1:], *rows)
    return Page(elements=elements, clickable=(*links, *(product.asin for product in shown)))


def product_page(instruction: str, product: Product, chosen: Mapping[str, str]) -> Page:
    """Returns the page of a product. chosen: options that were clicked, marked in the text."""
    options: list[str] = []
    for name, values in product.options.items():
        options.append(name)
        options += [f"{value} (chosen)" if chosen.get(name) == value else value for value in values]
    facts = (product.title, f"Price: {product.price_tag}", f"Rating: {product.rating}")
    elements = ("Instruction:", instruction, BACK, PREVIOUS, *options, *facts, *DETAILS, BUY)
    different = dict.fromkeys(value for values in product.options.values() for value in values)
    return Page(elements=elements, clickable=(BACK, PREVIOUS, *different, *DETAILS, BUY))


def details_page(instruction: str, product: Product, kind: str) -> Page:
    """Returns the page with the description, the features or the reviews of a product."""
    text = {
        "Description": product.description or "None",
        "Features": " ".join(product.bullets) or "None",
        "Reviews": "None",
    }[kind]
    elements = ("Instruction:", instruction, BACK, PREVIOUS, text[:_MAX_TEXT_CHARACTERS])
    return Page(elements=elements, clickable=(BACK, PREVIOUS))
