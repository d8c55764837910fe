"""Environment WebShop (arXiv:2207.01206): find, configure and buy a product by `search[...]` and `click[...]`."""

import asyncio
import re
from dataclasses import dataclass, field

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.datasets.worlds.webshop_files import open_store
from astraflow.datasets.worlds.webshop_store import Goal, Product, Store, StoreOptions
from astraflow.environments import environments
from astraflow.environments.base import EnvironmentLimits, Observation
from astraflow.environments.webshop.pages import (
    BACK,
    BUY,
    DETAILS,
    NEXT,
    PREVIOUS,
    Page,
    details_page,
    product_page,
    results_page,
    start_page,
)
from astraflow.environments.webshop.reward import shop_reward
from astraflow.search.base import Document
from astraflow.search.index import SearchIndex, build_index, check_installed

_RESULTS = 50
"""Products that a search finds at most."""
_MAX_ACTION_CHARACTERS = 2000
_ACTION = re.compile(r"\s*(search|click)\[(.+)\]\s*", re.IGNORECASE | re.DOTALL)
_EXPECTED = "Use search[keywords] or click[text of a button]."


class WebshopOptions(StoreOptions):
    """Store of the shop; the dataset must have the same store."""


@environments.register("webshop", options=WebshopOptions)
class WebshopFactory:
    """Shop with generated products or those of the published files. Reward in 0 to 1 for the product that is bought."""

    def __init__(self, options: WebshopOptions) -> None:
        self._options = options
        self._shop: _Shop | None = None
        check_installed()

    @property
    def limits(self) -> EnvironmentLimits:
        """Limits: actions take less than a millisecond."""
        return EnvironmentLimits(begin_s=10.0, act_s=10.0)

    async def start(self) -> None:
        """Opens the store and indexes its products. Raises: InvalidInput for an invalid file."""
        self._shop = await asyncio.to_thread(_open_shop, self._options)

    async def close(self) -> None:
        """Releases the products."""
        self._shop = None

    def make(self) -> "WebshopEnvironment":
        """Returns a new environment. Raises: InvalidInput before `start`."""
        if self._shop is None:
            raise InvalidInput(
                "cannot make an environment: the shop is not open; start the factory first",
                code="environment.not_started",
            )
        return WebshopEnvironment(self._shop)

    async def check(self) -> None:
        """Needs the packages `rapidfuzz` and `tantivy`, which building has checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shop:
    """Store of a factory, shared by its episodes, which do not change it."""

    store: Store
    index: SearchIndex
    by_asin: dict[str, Product]
    """Products by their number in lower case, as actions name them."""

    def search(self, keywords: str) -> list[Product]:
        """Returns the products that match, best first."""
        return [self.by_asin[hit.document.id.lower()] for hit in self.index.search(keywords, _RESULTS)]


@dataclass(slots=True)
class _Visit:
    """State of one episode."""

    goal: Goal
    found: list[Product] = field(default_factory=list)
    keywords: str = ""
    page_number: int = 0
    product: Product | None = None
    chosen: dict[str, str] = field(default_factory=dict)
    detail: str = ""
    """Name of the page of details that is shown."""
    ending: Ending | None = None

    @property
    def page(self) -> Page:
        """Page that is shown."""
        instruction = self.goal.instruction
        if self.product is not None and self.detail:
            return details_page(instruction, self.product, self.detail)
        if self.product is not None:
            return product_page(instruction, self.product, self.chosen)
        return results_page(instruction, self.found, self.page_number) if self.page_number else start_page(instruction)


class WebshopEnvironment:
    """Visit of the shop with one goal."""

    def __init__(self, shop: _Shop) -> None:
        self._shop = shop
        self._visit: _Visit | None = None

    async def begin(self, prompt: Prompt, _seed: int) -> Observation:
        """Shows the goal and the search field. The seed has no effect. Raises: InvalidInput for a prompt of another
        dataset or another store."""
        self._visit = _Visit(self._goal(prompt))
        return _observation(self._visit)

    async def act(self, action: str) -> Observation:
        """Searches or clicks. Raises: InvalidInput before `begin`."""
        visit = self._visit
        if visit is None:
            raise InvalidInput(
                "cannot act in the environment: it has not begun; call `begin` first", code="environment.not_begun"
            )
        if visit.ending is not None:
            return Observation(text="The episode has ended.", ending=visit.ending)
        match = _ACTION.fullmatch(action) if len(action) <= _MAX_ACTION_CHARACTERS else None
        if match is None or not match[2].strip():
            text = f"Cannot read the action. {_EXPECTED}"
            return Observation(text=text, actions=visit.page.actions, is_malformed=True, state=_state(visit))
        name = match[2].strip()
        if match[1].lower() == "search":
            visit.keywords, visit.found, visit.page_number = name, self._shop.search(name), 1
            visit.product, visit.detail, visit.chosen = None, "", {}
            return _observation(visit)
        return self._click(visit, name.lower())

    async def close(self) -> None:
        """Has nothing to release."""

    def _goal(self, prompt: Prompt) -> Goal:
        number, asin = prompt.fields.get("goal"), prompt.fields.get("asin")
        if not isinstance(number, int) or isinstance(number, bool):
            raise InvalidInput(
                f"cannot begin with prompt {str(prompt.id)!r}: its field `goal` is not the number of a goal; use the "
                "dataset `webshop`",
                code="environment.wrong_prompt",
            )
        goal = self._shop.store.goal(number)
        if asin is not None and asin != goal.product.asin:
            raise InvalidInput(
                f"cannot begin with prompt {str(prompt.id)!r}: goal {number} of this shop is for another product than "
                f"{asin!r}; give dataset and environment the same store",
                code="environment.wrong_prompt",
            )
        return goal

    def _click(self, visit: _Visit, name: str) -> Observation:
        if name not in (text.lower() for text in visit.page.clickable):
            return _observation(visit, notice=f"There is nothing to click with the name {name[:100]!r}.")
        if name == BUY.lower() and visit.product is not None:
            return _bought(visit, visit.product)
        notice = ""
        if name == BACK.lower():
            visit.page_number, visit.product, visit.detail, visit.chosen = 0, None, "", {}
        elif name == NEXT.lower():
            visit.page_number += 1
        elif name == PREVIOUS.lower():
            _go_back(visit)
        elif visit.product is None:
            visit.product = self._shop.by_asin[name]
        elif name.capitalize() in DETAILS:
            visit.detail = name.capitalize()
        else:
            option = next(option for option, values in visit.product.options.items() if name in values)
            visit.chosen[option] = name
            notice = f"You have clicked {name}."
        return _observation(visit, notice=notice)


def _go_back(visit: _Visit) -> None:
    if visit.detail:
        visit.detail = ""
    elif visit.product is not None:
        visit.product, visit.chosen = None, {}
    else:
        visit.page_number -= 1


def _bought(visit: _Visit, product: Product) -> Observation:
    reward = shop_reward(product, visit.chosen, visit.goal)
    visit.ending = Ending.WON if reward.total == 1.0 else Ending.LOST
    return Observation(
        text="Thank you for shopping with us!",
        reward=reward.total,
        ending=visit.ending,
        reward_terms=reward.terms,
        state=_state(visit),
    )


def _observation(visit: _Visit, *, notice: str = "") -> Observation:
    page = visit.page
    text = f"{notice}\n{page.text}" if notice else page.text
    return Observation(text=text, actions=page.actions, state=_state(visit))


def _state(visit: _Visit) -> str:
    chosen = ", ".join(f"{name}: {value}" for name, value in visit.chosen.items())
    parts = (
        f"search: {visit.keywords}" if visit.keywords else "",
        f"product: {visit.product.asin}" if visit.product else "",
        f"chosen: {chosen}" if chosen else "",
    )
    return "; ".join(filter(None, parts)) or "start"


def _open_shop(options: StoreOptions) -> _Shop:
    store = open_store(options)
    index = build_index(
        Document(id=product.asin, title=product.title, url="", text=_indexed_text(product))
        for product in store.products
    )
    return _Shop(store=store, index=index, by_asin={product.asin.lower(): product for product in store.products})


def _indexed_text(product: Product) -> str:
    options = (f"{name}: {', '.join(values)}" for name, values in product.options.items())
    return " ".join([product.description, *product.bullets, *options])
