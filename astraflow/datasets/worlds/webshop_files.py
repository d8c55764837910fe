"""Stores of WebShop (arXiv:2207.01206) from options, and the reader of the published files.

Products come from `items_shuffle*.json`, their attributes from `items_ins_v2*.json`, and goals that people wrote from
`items_human_ins.json`. Prices in a range and price bounds are drawn from the seed of the store and the product, so that
they are equal on every node; the published shop draws both before it sets its seed.
"""

import json
import random
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError

from astraflow.contract.errors import InvalidInput
from astraflow.datasets.worlds.webshop_store import (
    GeneratedStore,
    Goal,
    Product,
    Store,
    StoreOptions,
    WrittenGoals,
    price_bound,
)

_GOAL_ORDER = 233
"""Seed with which the published shop shuffles its goals; the splits refer to this order."""
_DEFAULT_PRICE = 100.0
_MAX_ASIN = 10
_READ_CHARACTERS = 2**20
_MAX_ROW_CHARACTERS = 2**24
_BETWEEN_ROWS = re.compile(r"[\s,]*")
_DOWNLOAD = (
    "download items_shuffle.json, items_ins_v2.json and items_human_ins.json into it, whose addresses are in setup.sh "
    "of github.com/princeton-nlp/WebShop"
)

Text = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]
"""Text of a scraped page, which may be null."""


def open_store(options: StoreOptions) -> Store:
    """Returns the store of the options; takes seconds for many products. Raises: InvalidInput for an invalid file."""
    return PublishedStore(options) if options.folder else GeneratedStore(options)


class _Choice(BaseModel):
    value: str


class _Item(BaseModel):
    """Row of the products; other fields are ignored."""

    asin: str
    name: Text
    category: Text = ""
    query: Text = ""
    product_category: Text = ""
    full_description: Text = ""
    small_description: list[Text] | Text = ""
    pricing: str | None = None
    customization_options: dict[str, list[_Choice] | None] | list[Any] | str | None = None


class _Attributes(BaseModel):
    attributes: list[str] = []


class _Instruction(BaseModel):
    instruction: str
    instruction_attributes: list[str] = []
    instruction_options: dict[str, str] | list[str] = []


class PublishedStore(WrittenGoals):
    """Store of the published files. Needs memory for its products and for all attributes."""

    def __init__(self, options: StoreOptions) -> None:
        folder = Path(options.folder).expanduser()
        items = _items(folder, options.products)
        asins = {item.asin for item in items}
        attributes = _by_asin(folder, "items_ins_v2*.json", TypeAdapter(dict[str, _Attributes]), asins)
        instructions = _by_asin(folder, "items_human_ins.json", TypeAdapter(dict[str, list[_Instruction]]), asins)
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
    small = item.small_description
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
        description=item.full_description,
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


def _items(folder: Path, count: int) -> list[_Item]:
    """Returns the first products. Raises: InvalidInput."""
    path = _found(folder, "items_shuffle*.json")
    try:
        return TypeAdapter(list[_Item]).validate_python(list(islice(_rows(path), count)))
    except (OSError, ValueError, RecursionError) as problem:
        raise _unreadable(path, problem) from None


def _by_asin(folder: Path, pattern: str, adapter: TypeAdapter[Any], asins: set[str]) -> Any:
    """Returns the values of the products in a file that has one for each product. Raises: InvalidInput."""
    path = _found(folder, pattern)
    try:
        content = json.loads(path.read_bytes())
        is_table = isinstance(content, dict)
        return adapter.validate_python(
            {asin: content[asin] for asin in asins & content.keys()} if is_table else content
        )
    except (OSError, ValueError, RecursionError) as problem:
        raise _unreadable(path, problem) from None


def _rows(path: Path) -> Iterator[Any]:
    """Yields the rows of a JSON array, and reads no further than they are used: the published file has gigabytes.

    Raises: ValueError.
    """
    decoder, at = json.JSONDecoder(), 1
    with path.open(encoding="utf-8") as file:
        text = file.read(_READ_CHARACTERS).lstrip()
        if not text.startswith("["):
            raise ValueError("it is no JSON array")
        while True:
            at = _BETWEEN_ROWS.match(text, at).end()  # type: ignore[union-attr]  # it matches an empty text
            if text.startswith("]", at):
                return
            try:
                row, at = decoder.raw_decode(text, at)
                yield row
            except ValueError:
                more = file.read(_READ_CHARACTERS)
                if not more or len(text) - at > _MAX_ROW_CHARACTERS:
                    raise
                text, at = text[at:] + more, 0


def _found(folder: Path, pattern: str) -> Path:
    """Returns the only file that matches. Raises: InvalidInput."""
    paths = sorted(folder.glob(pattern))
    if not paths:
        raise InvalidInput(
            f"cannot read the store {str(folder)!r}: no file matches {pattern!r}; {_DOWNLOAD}",
            code="dataset.not_found",
        )
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise InvalidInput(
            f"cannot read the store {str(folder)!r}: {names} match {pattern!r}; keep the files of one release",
            code="dataset.not_found",
        )
    return paths[0]


def _unreadable(path: Path, problem: Exception) -> InvalidInput:
    if isinstance(problem, ValidationError):
        first = problem.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return InvalidInput(
            f"cannot read {str(path)!r}: {where}: {first['msg']}; use a file of the published layout",
            code="dataset.wrong_field",
        )
    return InvalidInput(
        f"cannot read {str(path)!r}: {problem}; use a file of the published layout", code="dataset.unreadable"
    )
