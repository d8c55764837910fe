"""Reader of the published files of WebShop (arXiv:2207.01206).

Products come from `items_shuffle*.json`, their attributes from `items_ins_v2*.json`, and goals that people wrote from
`items_human_ins.json`. Prices in a range and price bounds are drawn from the seed of the store and the product, so that
they are equal on every node; the published shop draws both before it sets its seed.
"""

import json
import random
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from astraflow.contract.errors import InvalidInput
from astraflow.datasets.webshop_store import Goal, Product, StoreOptions, WrittenGoals, price_bound

_GOAL_ORDER = 233
"""Seed with which the published shop shuffles its goals; the splits refer to this order."""
_DEFAULT_PRICE = 100.0
_MAX_ASIN = 10


class _Choice(BaseModel):
    value: str


class _Item(BaseModel):
    """Row of the products; other fields are ignored."""

    asin: str
    name: str
    category: str = ""
    query: str = ""
    product_category: str = ""
    full_description: str | None = ""
    small_description: list[str] | str | None = ""
    pricing: str | None = None
    customization_options: dict[str, list[_Choice] | None] | str | None = None


class _Attributes(BaseModel):
    attributes: list[str] = []


class _Instruction(BaseModel):
    instruction: str
    instruction_attributes: list[str] = []
    instruction_options: dict[str, str] | list[str] = []


class PublishedStore(WrittenGoals):
    """Store of the published files. Needs memory for all of its products."""

    def __init__(self, options: StoreOptions) -> None:
        folder = Path(options.folder).expanduser()
        items = _read(folder, "items_shuffle*.json", TypeAdapter(list[_Item]))[: options.products]
        attributes = _read(folder, "items_ins_v2*.json", TypeAdapter(dict[str, _Attributes]))
        instructions = _read(folder, "items_human_ins.json", TypeAdapter(dict[str, list[_Instruction]]))
        products = {
            item.asin: _product(item, attributes, options.store_seed)
            for item in reversed(items)  # the first row of a product counts
            if item.asin != "nan" and len(item.asin) <= _MAX_ASIN
        }
        ordered = tuple(products[asin] for asin in dict.fromkeys(item.asin for item in items) if asin in products)
        goals = [
            _goal(product, instruction, random.Random(f"webshop/bound/{options.store_seed}/{product.asin}/{number}"))
            for product in ordered
            for number, instruction in enumerate(instructions.get(product.asin, []))
            if instruction.instruction_attributes
        ]
        random.Random(_GOAL_ORDER).shuffle(goals)
        if not goals:
            raise InvalidInput(
                f"cannot use the store {str(folder)!r}: none of its products has a goal; use more products, or the "
                "files of one release",
                code="dataset.empty",
            )
        super().__init__(ordered, tuple(goals))


def _product(item: _Item, attributes: dict[str, _Attributes], seed: int) -> Product:
    listed = attributes.get(item.asin)
    small = item.small_description or []
    price, tag = _price(item, seed)
    return Product(
        asin=item.asin,
        title=item.name,
        category=item.category,
        query=item.query.lower().strip(),
        product_category=item.product_category,
        attributes=tuple(listed.attributes if listed else ()),
        options=_options(item),
        price=price,
        price_tag=tag,
        description=item.full_description or "",
        bullets=tuple(small if isinstance(small, list) else [small]),
    )


def _price(item: _Item, seed: int) -> tuple[float, str]:
    """Returns the price and its tag. A range gives a price within it."""
    amounts = [re.sub(r"[^\d.]", "", part) for part in (item.pricing or "").split("$")[1:]]
    try:
        prices = [float(amount) for amount in amounts if amount][:2]
    except ValueError:
        raise InvalidInput(
            f"cannot read the price {item.pricing!r} of product {item.asin!r}; correct `pricing`",
            code="dataset.wrong_field",
        ) from None
    if not prices:
        return _DEFAULT_PRICE, f"${_DEFAULT_PRICE}"
    if len(prices) == 1:
        return prices[0], f"${prices[0]}"
    drawn = random.Random(f"webshop/price/{seed}/{item.asin}").uniform(*prices)
    return drawn, f"${prices[0]} to ${prices[1]}"


def _options(item: _Item) -> dict[str, tuple[str, ...]]:
    listed = item.customization_options
    if not isinstance(listed, dict):
        return {}
    return {
        name.lower(): tuple(choice.value.strip().replace("/", " | ").lower() for choice in choices)
        for name, choices in listed.items()
        if choices
    }


def _goal(product: Product, instruction: _Instruction, rng: random.Random) -> Goal:
    upper, price_text = price_bound(product.price, rng)
    options = instruction.instruction_options
    return Goal(
        product=product,
        instruction=instruction.instruction.strip(".") + price_text,
        attributes=tuple(instruction.instruction_attributes),
        options=tuple(options.values() if isinstance(options, dict) else options),
        price_upper=upper,
    )


def _read(folder: Path, pattern: str, adapter: TypeAdapter[Any]) -> Any:
    """Returns the content of the only file that matches. Raises: InvalidInput."""
    paths = sorted(folder.glob(pattern))
    if len(paths) != 1:
        raise InvalidInput(
            f"cannot read the store {str(folder)!r}: {len(paths)} files match {pattern!r}; it needs exactly one",
            code="dataset.not_found",
        )
    try:
        return adapter.validate_python(json.loads(paths[0].read_bytes()))
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidInput(
            f"cannot read {str(paths[0])!r}: {where}: {first['msg']}; use a file of the published layout",
            code="dataset.wrong_field",
        ) from None
    except (OSError, ValueError, RecursionError) as problem:
        raise InvalidInput(
            f"cannot read {str(paths[0])!r}: {problem}; use a file of the published layout", code="dataset.unreadable"
        ) from None
