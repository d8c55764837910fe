"""The shop: pages and clicks, the reward formula, the store and the published files."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending
from astraflow.datasets import datasets
from astraflow.datasets.worlds.webshop_files import open_store
from astraflow.datasets.worlds.webshop_store import NO_BOUND, Goal, Product, StoreOptions
from astraflow.environments import environments
from astraflow.environments.base import EnvironmentFactory, Observation
from astraflow.environments.episodes import Expert, play, total_reward
from astraflow.environments.webshop.reward import shop_reward, type_factor
from astraflow.testing.plugins import EnvironmentSuite
from tests.errors import raises_code

pytestmark = pytest.mark.anyio

STORE = {"products": 1000}
GOALS = datasets.build({"kind": "webshop", "split": "all", "goals": 200, "store": STORE}, 0)


def shopper(prompt: Prompt, observations: Sequence[Observation]) -> str:
    """Searches with the words of the instruction, opens the product, clicks the options, and buys."""
    instruction, asin = str(prompt.fields["question"]), str(prompt.fields["asin"]).lower()
    actions = observations[-1].actions
    chosen = re.findall(r": ([^,]+)", observations[-1].state.partition("; chosen: ")[2])
    if "search[KEYWORDS]" in actions:
        return f"search[{re.sub(r', and price lower.*', '', instruction)}]"
    if f"click[{asin}]" in actions:
        return f"click[{asin}]"
    if "click[buy now]" not in actions:
        return "click[next >]"
    for option in re.findall(r"(?:color|size|fit|capacity|scent|flavor): ([\w -]+?)(?=,|$)", instruction):
        if option not in chosen:
            return f"click[{option}]"
    return "click[buy now]"


class TestWebshop(EnvironmentSuite):
    @pytest.fixture
    def factory(self) -> EnvironmentFactory:
        return environments.build({"kind": "webshop", **STORE})

    @pytest.fixture
    def prompts(self) -> Sequence[Prompt]:
        return [GOALS.prompt(index) for index in range(4)]

    @pytest.fixture
    def expert(self) -> Expert:
        return shopper


async def opened(**options: Any) -> EnvironmentFactory:
    factory: Any = environments.build({"kind": "webshop", **STORE, **options})
    await factory.start()
    return factory  # type: ignore[no-any-return]


@pytest.mark.long
async def test_a_scripted_shopper_reaches_reward_1_for_every_goal() -> None:
    factory = await opened()
    for index in range(200):
        observations = await play(factory, GOALS.prompt(index), 0, shopper)
        assert total_reward(observations) == 1.0, (index, [observation.text[:200] for observation in observations])
        assert observations[-1].ending is Ending.WON
        assert set(observations[-1].reward_terms.values()) == {1.0}


async def test_pages_follow_each_other_as_in_a_shop() -> None:
    environment = (await opened()).make()
    begun = await environment.begin(GOALS.prompt(0), 0)
    assert begun.actions == ("search[KEYWORDS]",)
    results = await environment.act("search[machine washable]")
    assert "Total results: 50" in results.text and "click[next >]" in results.actions
    second = await environment.act("click[next >]")
    assert "Page 2" in second.text and "click[< prev]" in second.actions
    assert (await environment.act("click[< prev]")) == results
    asin = results.actions[2]
    product = await environment.act(asin)
    assert "click[buy now]" in product.actions and "Price: $" in product.text
    features = await environment.act("Click[Features]")
    assert features.actions == ("click[back to search]", "click[< prev]")
    assert await environment.act("click[< prev]") == product
    assert (await environment.act("click[< prev]")).actions == results.actions
    nothing = await environment.act("click[no such thing]")
    assert not nothing.is_malformed and nothing.actions == results.actions
    assert (await environment.act("click[back to search]")).actions == begun.actions
    empty = await environment.act("search[zzzz]")
    assert "Total results: 0" in empty.text


@pytest.mark.long
async def test_buying_another_product_gives_a_part_of_the_reward() -> None:
    factory = await opened()
    store = open_store(StoreOptions(**STORE))
    goal = store.goal(0)
    environment = factory.make()
    await environment.begin(GOALS.prompt(0), 0)
    results_page = await environment.act(f"search[{goal.product.query}]")
    other = next(
        action for action in results_page.actions if "[b0" in action and goal.product.asin.lower() not in action
    )
    await environment.act(other)
    bought = await environment.act("click[buy now]")
    assert bought.ending is Ending.LOST and 0.0 <= bought.reward < 1.0
    assert bought.reward_terms["options"] == 0.0


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "environment.wrong_prompt"),
        ({"goal": "3"}, "environment.wrong_prompt"),
        ({"goal": 3, "asin": "B000000000"}, "environment.wrong_prompt"),
    ],
)
async def test_goals_of_another_store_are_refused(fields: dict[str, Any], code: str) -> None:
    environment = (await opened(products=20)).make()
    with raises_code(InvalidInput, code):
        await environment.begin(Prompt(id=PromptId("x"), fields=fields), 0)


def test_products_goals_and_prices_follow_from_the_seed() -> None:
    store, same = (open_store(StoreOptions(products=50, store_seed=3)) for _ in range(2))
    other = open_store(StoreOptions(products=50, store_seed=4))
    assert store.products == same.products != other.products
    assert [store.goal(n) for n in (5, 0)] == [same.goal(n) for n in (5, 0)] != [other.goal(n) for n in (5, 0)]
    assert len({product.asin for product in store.products}) == 50
    for number in range(200):
        goal = store.goal(number)
        assert goal.product.price < goal.price_upper
        assert set(goal.attributes) <= set(goal.product.attributes)
        assert len(goal.options) == len(goal.product.options)


def test_a_dataset_with_a_store_has_its_goals_in_the_published_splits() -> None:
    split = datasets.build({"kind": "webshop", "split": "eval", "goals": 700, "store": STORE}, 0)
    assert split.size == 200
    goal = open_store(StoreOptions(**STORE)).goal(500)
    assert dict(split.prompt(0).fields) == {
        "question": goal.instruction,
        "answer": "",
        "goal": 500,
        "asin": goal.product.asin,
    }
    with raises_code(InvalidInput, "config.invalid"):
        datasets.build({"kind": "webshop", "is_sample": True, "store": {}}, 0)


WANTED = Product(
    asin="A",
    title="Aldren Oak Desk",
    category="home",
    query="oak desk",
    product_category="Home \u203a Furniture \u203a Desks",
    attributes=("easy to clean", "heavy duty"),
    options={"color": ("black", "white"), "size": ("small", "large")},
    price=50.0,
    price_tag="$50.0",
    description="A desk that is scratch proof.",
    bullets=("Space saving.",),
)
GOAL = Goal(
    product=WANTED,
    instruction="...",
    attributes=("easy to clean", "heavy duty"),
    options=("black", "small"),
    price_upper=60.0,
)
RIGHT = {"color": "black", "size": "small"}
CHAIR = replace(
    WANTED,
    asin="B",
    title="Brovik Linen Chair",
    query="linen chair",
    product_category="Home \u203a Seats \u203a Chairs",
)
LONG = "one two three four five six seven eight nine ten eleven desk"


@pytest.mark.parametrize(
    ("bought", "chosen", "goal", "expected"),
    [
        (WANTED, RIGHT, GOAL, 1.0),
        (WANTED, {"color": "black"}, GOAL, 4 / 5),
        (WANTED, {"color": "white", "size": "large"}, GOAL, 3 / 5),
        (replace(WANTED, price=61.0), RIGHT, GOAL, 4 / 5),
        (replace(WANTED, attributes=("heavy duty",)), RIGHT, GOAL, 4 / 5),
        (replace(WANTED, attributes=("cleaning easy to clean",)), RIGHT, GOAL, 4 / 5),
        (replace(WANTED, attributes=()), RIGHT, replace(GOAL, attributes=("scratch proof", "space saving")), 1.0),
        (CHAIR, RIGHT, GOAL, 0.0),
        (replace(CHAIR, title="Desk Chair"), RIGHT, GOAL, 1.0),
        (
            replace(CHAIR, title="Aldren Chair"),
            RIGHT,
            replace(GOAL, product=replace(WANTED, title="Aldren Oak Desk Drawer Shelf Lamp")),
            0.5,
        ),
        (replace(CHAIR, title="a desk"), {}, replace(GOAL, product=replace(WANTED, title=LONG)), 0.1 * 3 / 5),
        (WANTED, {}, replace(GOAL, attributes=(), options=(), price_upper=NO_BOUND), 1.0),
    ],
)
def test_the_reward_of_worked_cases(bought: Product, chosen: dict[str, str], goal: Goal, expected: float) -> None:
    assert shop_reward(bought, chosen, goal).total == pytest.approx(expected)


def test_two_shared_categories_or_the_same_query_make_one_kind() -> None:
    title = "Aldren Linen Sofa Bed Cover Long"  # shares one word of six: an overlap of 0.17
    far = replace(CHAIR, title="Aldren Chair")
    wanted = replace(WANTED, title=title)
    assert type_factor(far, wanted) == 0.5
    assert type_factor(replace(far, query=wanted.query), wanted) == 1.0
    assert type_factor(replace(far, product_category="Home \u203a Furniture"), wanted) == 1.0


words = st.sampled_from(["easy to clean", "heavy duty", "space saving", "rust proof", "black", "white", "small"])


@pytest.mark.long
@settings(max_examples=200)
@given(
    attributes=st.lists(words, max_size=4),
    wanted=st.lists(words, min_size=1, max_size=3, unique=True),
    chosen=st.dictionaries(st.sampled_from(["color", "size"]), words),
    price=st.floats(0, 200),
    more=words,
)
def test_a_better_fit_never_lowers_the_reward(
    attributes: list[str], wanted: list[str], chosen: dict[str, str], price: float, more: str
) -> None:
    goal = replace(GOAL, attributes=tuple(wanted))
    product = replace(WANTED, attributes=tuple(attributes), price=price)
    reward = shop_reward(product, chosen, goal)
    assert 0.0 <= reward.total <= 1.0
    assert all(0.0 <= term <= 1.0 for term in reward.terms.values())
    assert shop_reward(replace(product, attributes=(*attributes, more)), chosen, goal).total >= reward.total
    assert shop_reward(product, {**chosen, "extra": more}, goal).total >= reward.total
    assert shop_reward(replace(product, price=price / 2), chosen, goal).total >= reward.total
    assert shop_reward(replace(product, title="unrelated"), chosen, goal).total == 0.0


def item(asin: str, **changed: Any) -> dict[str, Any]:
    return {
        "asin": asin,
        "name": f"Item {asin}",
        "category": "garden",
        "query": " Garden Hose ",
        "product_category": "Garden \u203a Hoses",
        "full_description": "Long.",
        "small_description": ["Green.", "Strong."],
        "pricing": "$10.50$20.00",
        "customization_options": {"Color": [{"value": " Red/Blue ", "image": None}], "Size": None},
        "images": ["x"],
        **changed,
    }


def write_store(folder: Path, items: Any, instructions: Any = None) -> dict[str, Any]:
    wanted = {
        "instruction": "a green hose.",
        "instruction_attributes": ["green"],
        "instruction_options": ["red | blue"],
    }
    known = {"A1": [wanted, {**wanted, "instruction_attributes": []}], "A2": [{**wanted, "instruction_options": {}}]}
    (folder / "items_shuffle_1000.json").write_text(json.dumps(items))
    (folder / "items_ins_v2_1000.json").write_text(json.dumps({"A1": {"attributes": ["green", "long"]}}))
    (folder / "items_human_ins.json").write_text(json.dumps(known if instructions is None else instructions))
    return {"folder": str(folder)}


async def test_the_published_files_are_a_store(tmp_path: Path) -> None:
    rows = [item("A1"), item("A2", pricing="$1,005.00"), item("A1", name="again"), item("nan"), item("LONG_NUMBER_1")]
    spec = write_store(tmp_path, rows)
    store, same = (open_store(StoreOptions(**spec)) for _ in range(2))
    assert [product.asin for product in store.products] == ["A1", "A2"]
    first, second = store.products
    assert (first.title, first.query, first.attributes) == ("Item A1", "garden hose", ("green", "long"))
    assert first.options == {"color": ("red | blue",)}
    assert 10.5 <= first.price <= 20.0 and first.price_tag == "$10.5 to $20.0"
    assert (second.price, second.attributes) == (1005.0, ())
    goals = [store.goal(number) for number in range(2)]
    assert goals == [same.goal(number) for number in range(2)] and store.goal_count == 2
    of_first, of_second = sorted(goals, key=lambda goal: goal.product.asin)
    assert of_first.instruction.startswith("a green hose, and price lower than ")
    assert first.price < of_first.price_upper <= 50.0
    assert (of_second.instruction, of_second.price_upper, of_second.options) == ("a green hose", NO_BOUND, ())

    prompts = datasets.build({"kind": "webshop", "split": "all", "store": spec}, 0)
    factory = await opened(**spec)
    for index in range(prompts.size):
        environment = factory.make()
        prompt = prompts.prompt(index)
        await environment.begin(prompt, 0)
        await environment.act("search[green]")
        await environment.act(f"click[{prompt.fields['asin']}]")
        if "click[red | blue]" in (await environment.act("click[none]")).actions:
            await environment.act("click[red | blue]")
        bought = await environment.act("click[buy now]")
        assert bought.reward == 1.0


@pytest.mark.parametrize(
    ("items", "instructions", "code"),
    [
        ([{"asin": "A1"}], None, "dataset.wrong_field"),
        ({"A1": {}}, None, "dataset.unreadable"),
        ([item("A1", pricing="$1.2.3")], None, "dataset.wrong_field"),
        ([item("A1")], {}, "dataset.empty"),
        ([item("A1")], [], "dataset.wrong_field"),
    ],
)
def test_damaged_files_are_refused(items: Any, instructions: Any, code: str, tmp_path: Path) -> None:
    spec = write_store(tmp_path, items, instructions)
    with raises_code(InvalidInput, code):
        open_store(StoreOptions(**spec))


def test_missing_or_unreadable_files_are_refused(tmp_path: Path) -> None:
    with raises_code(InvalidInput, "dataset.not_found", "items_human_ins.json", "github.com/princeton-nlp/WebShop"):
        open_store(StoreOptions(folder=str(tmp_path)))
    spec = write_store(tmp_path, [item("A1")])
    (tmp_path / "items_human_ins.json").write_text("{")
    with raises_code(InvalidInput, "dataset.unreadable"):
        open_store(StoreOptions(**spec))
    (tmp_path / "items_shuffle.json").write_text("[]")
    with raises_code(InvalidInput, "dataset.not_found", "items_shuffle.json, items_shuffle_1000.json"):
        open_store(StoreOptions(**spec))


def test_no_row_is_read_beyond_the_wanted_products_and_null_is_an_empty_text(tmp_path: Path) -> None:
    rows = [item("A1", category=None, full_description=None, small_description=["Green.", None]), item("A2")]
    rows += [item(f"B{number}", full_description="x" * 2000) for number in range(1000)]
    spec = write_store(tmp_path, rows)
    path = tmp_path / "items_shuffle_1000.json"
    path.write_text(path.read_text().removesuffix("]") + ", {damaged")
    store = open_store(StoreOptions(**spec, products=2))
    assert [product.asin for product in store.products] == ["A1", "A2"]
    first = store.products[0]
    assert (first.category, first.description, first.bullets) == ("", "", ("Green.", ""))
    assert len(open_store(StoreOptions(**spec, products=1002)).products) == 1002
    with raises_code(InvalidInput, "dataset.unreadable"):
        open_store(StoreOptions(**spec, products=1003))
