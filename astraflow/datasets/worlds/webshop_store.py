"""Stores of WebShop (arXiv:2207.01206): products, prices and shopping goals, and the generated store."""

import random
from dataclasses import dataclass, field
from typing import Annotated, Protocol

from pydantic import Field

from astraflow.datasets.base import check_index
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy

CATEGORY_SEPARATOR = "\u203a"
NO_BOUND = 1_000_000.0
"""Price bound of goals without one, in dollars."""
_BOUNDS = tuple(10.0 * step for step in range(1, 100))


class StoreOptions(Config):
    """Products to sell: generated, or those of a folder."""

    products: int = Field(default=1000, ge=1, le=100_000)
    """Number of generated products; with `folder`, at most this number of its products."""
    store_seed: int = 0
    """Another seed gives other products, prices and goals."""
    folder: Annotated[str, SettableBy.DATA_LOCATION] = ""
    """Folder with the published files `items_shuffle*.json`, `items_ins_v2*.json` and `items_human_ins.json`; empty:
    generated products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Product of a store. Texts are as the page shows them."""

    asin: str
    """Number of the product: ten capital letters and digits."""
    title: str
    category: str
    query: str
    """Words by which shoppers search for its kind."""
    product_category: str
    """Path of categories, separated by `CATEGORY_SEPARATOR`."""
    attributes: tuple[str, ...]
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Values of each option, such as the colours."""
    price: float
    """Dollars."""
    price_tag: str
    description: str = ""
    bullets: tuple[str, ...] = ()
    rating: str = "N.A."


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Goal of an episode: the product to buy."""

    product: Product
    """A product that fits; others may fit too."""
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    """One value of each option."""
    price_upper: float


class Store(Protocol):
    """Products and goals. Both depend only on the options of the store."""

    @property
    def products(self) -> tuple[Product, ...]:
        """All products."""

    @property
    def goal_count(self) -> int | None:
        """Number of goals; None when any number can be generated."""

    def goal(self, number: int) -> Goal:
        """Returns a goal. Raises: InvalidInput for a number that the store does not have."""


def price_bound(price: float, rng: random.Random) -> tuple[float, str]:
    """Returns a bound above the price with its text, as the published goals have it; no bound above 980 dollars."""
    above = [bound for bound in _BOUNDS if bound > price][:4]
    if len(above) < 2:
        return NO_BOUND, ""
    upper = max(rng.sample(above, 2))
    return upper, f", and price lower than {upper:.2f} dollars"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Kind of generated products."""

    name: str
    path: tuple[str, str]
    options: tuple[str, ...]
    prices: tuple[float, float]


_KINDS = tuple(
    _Kind(name=name, path=(group, branch), options=options, prices=prices)
    for group, branch, options, prices, names in (
        (
            "Home & Kitchen",
            "Furniture",
            ("color", "size"),
            (40, 400),
            "bookcase nightstand armchair ottoman bench desk",
        ),
        ("Home & Kitchen", "Bedding", ("color", "size"), (12, 90), "blanket pillowcase quilt duvet bedspread"),
        ("Home & Kitchen", "Kitchen", ("color",), (6, 60), "teapot skillet colander pitcher spatula"),
        ("Clothing", "Tops", ("color", "size", "fit"), (9, 70), "sweater hoodie blouse cardigan tunic jersey"),
        ("Clothing", "Shoes", ("color", "size"), (18, 160), "sneakers sandals loafers boots slippers"),
        ("Clothing", "Accessories", ("color",), (5, 80), "scarf beanie wallet belt gloves"),
        ("Electronics", "Audio", ("color",), (15, 300), "headphones speaker earbuds microphone soundbar"),
        ("Electronics", "Computers", ("capacity",), (10, 900), "laptop tablet keyboard router webcam"),
        ("Beauty", "Skin Care", ("scent", "size"), (4, 50), "lotion serum cleanser sunscreen balm"),
        ("Grocery", "Snacks", ("flavor", "size"), (3, 40), "cookies crackers granola popcorn jerky"),
    )
    for name in names.split()
)
_OPTION_VALUES = {
    "color": ("black", "white", "navy", "teal", "crimson", "olive", "beige", "violet", "amber", "silver", "maroon"),
    "size": ("small", "medium", "large", "x-large", "twin", "full", "queen", "king"),
    "fit": ("slim", "regular", "relaxed", "tall", "petite"),
    "capacity": ("64 gb", "128 gb", "256 gb", "512 gb", "1 tb"),
    "scent": ("lavender", "citrus", "coconut", "vanilla", "unscented"),
    "flavor": ("chocolate", "honey", "pepper", "seaweed", "maple", "barbecue"),
}
_ATTRIBUTES = (
    *("machine washable", "non slip", "easy to clean", "water resistant", "long lasting", "light weight"),
    *("eco friendly", "hand crafted", "space saving", "heavy duty", "gluten free", "sugar free", "noise cancelling"),
    *("fast charging", "quick drying", "fragrance free", "high density", "dust proof", "anti bacterial"),
    *("double stitched", "rust proof", "bpa free", "vintage style", "extra soft", "shock proof"),
)
_BRANDS = ("Aldren", "Brovik", "Castell", "Dunmore", "Elvora", "Fenwick", "Garlan", "Hollis", "Ivarra", "Jundal")
_MATERIALS = ("oak", "linen", "cotton", "steel", "bamboo", "leather", "ceramic", "walnut", "wool", "canvas")


class GeneratedStore:
    """Products of invented brands: kinds, attributes, options and prices in all combinations."""

    def __init__(self, options: StoreOptions) -> None:
        self._seed = options.store_seed
        self.products = tuple(self._product(number) for number in range(options.products))

    @property
    def goal_count(self) -> int | None:
        """Any number."""
        return None

    def goal(self, number: int) -> Goal:
        """Returns goal `number`: attributes and options of a product, and a price bound above its price."""
        rng = random.Random(f"webshop/goal/{self._seed}/{number}")
        product = rng.choice(self.products)
        attributes = tuple(rng.sample(product.attributes, rng.randint(1, 3)))
        values = {name: rng.choice(values) for name, values in product.options.items()}
        upper, price_text = price_bound(product.price, rng)
        wanted = ", and ".join(f"{name}: {value}" for name, value in values.items())
        instruction = f"i am looking for {', '.join(attributes)} {product.query} by {product.title.split()[0].lower()}"
        return Goal(
            product=product,
            instruction=f"{instruction} with {wanted}{price_text}",
            attributes=attributes,
            options=tuple(values.values()),
            price_upper=upper,
        )

    def _product(self, number: int) -> Product:
        rng = random.Random(f"webshop/product/{self._seed}/{number}")
        kind = rng.choice(_KINDS)
        brand, material = rng.choice(_BRANDS), rng.choice(_MATERIALS)
        attributes = tuple(rng.sample(_ATTRIBUTES, 4))
        options = {name: self._values(name, rng) for name in kind.options}
        price = round(rng.uniform(*kind.prices), 2)
        name = f"{material.capitalize()} {kind.name.capitalize()}"
        return Product(
            asin=f"B0{_code(number)}",
            title=f"{brand} {name}, {attributes[0].title()}",
            category=kind.path[0].lower(),
            query=f"{material} {kind.name}",
            product_category=f" {CATEGORY_SEPARATOR} ".join([*kind.path, name]),
            attributes=attributes,
            options=options,
            price=price,
            price_tag=f"${price}",
            description=f"This {kind.name} of {material} is {attributes[1]} and {attributes[2]}.",
            bullets=tuple(f"{attribute.capitalize()}." for attribute in attributes),
            rating=f"{rng.randint(20, 50) / 10}",
        )

    def _values(self, name: str, rng: random.Random) -> tuple[str, ...]:
        values = _OPTION_VALUES[name]
        return tuple(sorted(rng.sample(values, rng.randint(2, min(4, len(values))))))


class WrittenGoals:
    """Goals in a list, for stores that read them."""

    def __init__(self, products: tuple[Product, ...], goals: tuple[Goal, ...]) -> None:
        self.products = products
        self._goals = goals

    @property
    def goal_count(self) -> int | None:
        """Length of the list."""
        return len(self._goals)

    def goal(self, number: int) -> Goal:
        """Returns goal `number`."""
        check_index(number, len(self._goals))
        return self._goals[number]


def _code(number: int) -> str:
    """Returns eight capital letters and digits for a number.

    >>> _code(0), _code(35), _code(36)
    ('00000000', '0000000Z', '00000010')
    """
    letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    code = ""
    for _ in range(8):
        number, digit = divmod(number, 36)
        code = letters[digit] + code
    return code
