"""List of recipes on the launch page and in the API: families, parts, needs, obstacles and failures."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.contract.errors import DeadlineExceeded
from astraflow.contract.launching import RecipeCard, RecipeNeeds, RecipeObstacle, RecipeParts
from tests.fakes.launching import FakeCatalogue
from tests.fakes.web import RunningWeb, running_web
from tests.web.page_elements import parsed
from web.launches.recipe_cards import recipe_list

HERE = RecipeCard(
    name="smoke",
    name_or_path="smoke",
    summary="Simulated",
    simulated=("scripted",),
    problem="",
    shows="Every service of a run",
    minutes=1,
    measured_on="two cores",
    needs=RecipeNeeds(memory_gb=0.8, disk_gb=1),
    parts=RecipeParts(prompts=("letters",), policies=("solver",), workflow="single_turn", reward="exact_match"),
)
LARGE = replace(
    HERE,
    name="math",
    minutes=None,
    needs=RecipeNeeds(gpus=8, gpu_memory_gb=80, memory_gb=64, disk_gb=200),
    parts=RecipeParts(
        prompts=("math",), policies=("a", "b", "c", "d", "e"), world="<b>search</b>", reward="math_answer"
    ),
    obstacles=(RecipeObstacle(cause="it needs 8 GPUs; this machine has none", remedy="use a <larger> one"),),
)
BROKEN = replace(HERE, name="own/broken", problem="line 3: no value", summary="")


class Recipes(FakeCatalogue):
    """Recipes of the test, or a failure."""

    listed: tuple[RecipeCard, ...] = (HERE, LARGE, BROKEN)
    failure: Exception | None = None

    async def cards(self) -> tuple[RecipeCard, ...]:
        if self.failure is not None:
            raise self.failure
        return self.listed


@pytest.fixture
async def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningWeb]:
    monkeypatch.setattr("web.service.Catalogue", Recipes)
    async with running_web(tmp_path / "web", "") as running:
        yield running


@pytest.mark.anyio
async def test_the_page_and_the_api_show_the_same_needs_and_obstacles(
    page: RunningWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with page.logged_in() as client:
        text = (await client.get("/runs/new")).text
        for shown in (
            "1 of 3 recipes can run on this machine",
            "8 GPUs with 80 GB each, at least 64 GB of memory and 200 GB of disk",
            "on two cores",
            "not measured",
            "Cannot run on this machine",
            "use a &lt;larger&gt; one",
            "line 3: no value",
        ):
            assert shown in text
        assert "<b>search" not in text

        listed = (await client.get("/api/v1/recipes")).json()
        assert [recipe["name"] for recipe in listed] == ["smoke", "math", "own/broken"]
        assert listed[1]["needs"]["gpus"] == 8
        assert listed[1]["obstacles"] == [{"cause": LARGE.obstacles[0].cause, "remedy": LARGE.obstacles[0].remedy}]

        monkeypatch.setattr(Recipes, "failure", DeadlineExceeded("cannot run `astraflow recipes`: too slow; try again"))
        failed = await client.get("/runs/new")
        assert failed.status_code == 503
        assert "too slow" in failed.text
        assert "astraflow recipes" in failed.text


def test_favourites_and_own_recipes_come_first_and_those_that_cannot_run_last() -> None:
    own, other = replace(LARGE, name="own", is_own=True), replace(HERE, name="search", summary="Finds a needle")
    listed = recipe_list((LARGE, HERE, own, other, BROKEN), favourites={"math"})
    assert [(group.title, [view.recipe.name for view in group.cards]) for group in listed.groups] == [
        ("Favourites", ["math"]),
        ("Your recipes", ["own"]),
        ("Run on this machine", ["smoke", "search"]),
    ]
    assert [view.recipe.name for view in listed.unrunnable] == ["own/broken"]
    needles = recipe_list((LARGE, HERE, own, other), search_text="NEEDLE exact")
    assert [view.recipe.name for group in needles.groups for view in group.cards] == ["search"]
    assert recipe_list((HERE,), search_text="zzz").is_empty


@pytest.mark.anyio
async def test_a_recipe_is_a_favourite_of_one_person_and_the_search_needs_no_scripts(page: RunningWeb) -> None:
    async with page.logged_in() as client, page.in_role(client, "operator") as operator:
        starred = await client.post("/runs/new/favourite", data={"recipe": "smoke", "is_favourite": "true", "q": "m"})
        assert (starred.status_code, starred.headers["location"]) == (303, "/runs/new?q=m")
        assert "Favourites" in (await client.get("/runs/new")).text
        assert "Favourites" not in (await operator.get("/runs/new")).text
        rows = parsed(await client.get("/runs/new?q=smoke")).all(".recipe-row")
        assert [row.one("h3").text.split()[0] for row in rows] == ["smoke"]
        unknown = await client.post("/runs/new/favourite", data={"recipe": "no-such", "is_favourite": "true"})
        assert unknown.status_code == 422
        await client.post("/runs/new/favourite", data={"recipe": "smoke", "is_favourite": "false"})
        assert "Favourites" not in (await client.get("/runs/new")).text


@pytest.mark.anyio
async def test_a_slow_list_does_not_delay_the_page(page: RunningWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    async def none_yet(catalogue: FakeCatalogue, limit_s: float) -> None:
        return None

    monkeypatch.setattr(Recipes, "cards_within", none_yet)
    async with page.logged_in() as client:
        first = await client.get("/runs/new?q=smoke")
        assert "/runs/new?is_whole=true&amp;q=smoke" in first.text
        assert "recipe=smoke" in (await client.get("/runs/new?is_whole=true&q=smoke")).text
