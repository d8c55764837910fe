"""Reward of WebShop (arXiv:2207.01206): how well a bought product fits a goal, in 0 to 1.

    reward = type * (attributes matched + options matched + [price <= bound]) / (attributes + options + 1)

An attribute or option is matched when a token-set ratio of more than 85 says so; an attribute also when the title, the
bullet points or the description contain it. `type` is 1 for the same query, two shared categories or a title overlap
above 0.2, otherwise 0.5; 0.1 for an overlap below 0.1, and 0 without any.

The published shop takes the nouns of a title from a language model of spaCy and maps colours to basic ones before it
compares options. Here the words of a title are those of three or more letters outside a list of function words, and
options are compared as they are.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rapidfuzz import fuzz, utils

from astraflow.datasets.worlds.webshop_store import CATEGORY_SEPARATOR, Goal, Product

_MIN_RATIO = 85
_FUNCTION_WORDS = frozenset(
    ("and", "are", "for", "from", "has", "into", "its", "not", "our", "that", "the", "this", "with", "you", "your")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopReward:
    """Reward and its terms, each in 0 to 1."""

    type: float
    """Factor for the kind of product."""
    attributes: float
    """Share of the goal's attributes; 1 for a goal without any. The same for `options`."""
    options: float
    price: float
    """1 when the price is within the bound."""
    total: float

    @property
    def terms(self) -> dict[str, float]:
        """Terms by name."""
        return {"type": self.type, "attributes": self.attributes, "options": self.options, "price": self.price}


def shop_reward(bought: Product, chosen: Mapping[str, str], goal: Goal) -> ShopReward:
    """Returns the reward for buying a product. chosen: value of each option that was clicked."""
    attributes = sum(_has_attribute(bought, attribute) for attribute in goal.attributes)
    options = sum(_is_close_to_any(option, chosen.values()) for option in goal.options)
    price = float(bought.price <= goal.price_upper)
    factor = type_factor(bought, goal.product)
    wanted = len(goal.attributes) + len(goal.options) + 1
    return ShopReward(
        type=factor,
        attributes=attributes / len(goal.attributes) if goal.attributes else 1.0,
        options=options / len(goal.options) if goal.options else 1.0,
        price=price,
        total=factor * (attributes + options + price) / wanted,
    )


def type_factor(bought: Product, wanted: Product) -> float:
    """Returns whether two products are of one kind: 1, 0.5, 0.1 or 0."""
    overlap = title_overlap(bought.title, wanted.title)
    if overlap == 0.0:
        return 0.0
    if overlap < 0.1:
        return 0.1
    shared = _categories(bought) & _categories(wanted)
    return 1.0 if bought.query == wanted.query or len(shared) >= 2 or overlap > 0.2 else 0.5


def title_overlap(bought: str, wanted: str) -> float:
    """Returns the share of the words of the wanted title that the bought title has; 0.2 when it has no words."""
    words = _words(wanted)
    return len(words & _words(bought)) / len(words) if words else 0.2


def _has_attribute(product: Product, attribute: str) -> bool:
    if _is_close_to_any(attribute, product.attributes):
        return True
    texts = (product.title, " ".join(product.bullets), product.description)
    return any(attribute in text.lower() for text in texts)


def _is_close_to_any(text: str, others: Iterable[str]) -> bool:
    return any(_ratio(text, other) > _MIN_RATIO for other in others)


def _ratio(first: str, second: str) -> int:
    ascii_texts = (text.encode("ascii", "ignore").decode() for text in (first, second))
    return round(fuzz.token_set_ratio(*ascii_texts, processor=utils.default_process))


def _categories(product: Product) -> set[str]:
    return {part.strip() for part in product.product_category.split(CATEGORY_SEPARATOR)}


def _words(title: str) -> set[str]:
    return set(re.findall(r"[^\W\d_]{3,}", title.lower())) - _FUNCTION_WORDS
