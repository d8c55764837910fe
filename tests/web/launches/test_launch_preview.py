"""Launch previews of the API: they equal those of the page and start nothing."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.web.launches.test_launching_fleets import HERE, page_of
from web.launches.schemas import LaunchPreviewRequest

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("ready_cli"), pytest.mark.timeout(600)]

PREVIEW = "/api/v1/launch-preview"
STEPS = {"recipe": "smoke", "set": {"stop.steps": 7}}


@pytest.fixture(autouse=True)
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with a recipe that declares its machines."""
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    folder = tmp_path / "recipes"
    folder.mkdir(mode=0o755)
    (folder / "here.toml").write_text(HERE)
    return folder


async def preview(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post(PREVIEW, json=body)
    assert answer.status_code == 200, answer.text
    answer_body: dict[str, Any] = answer.json()
    return answer_body


@pytest.mark.long
async def test_the_previews_of_the_api_and_the_page_are_equal_and_launch_nothing(tmp_path: Path) -> None:
    async with page_of(tmp_path) as (_, client):
        launch_preview = await preview(client, **STEPS)
        shown = await client.post("/runs/new/preview", data={"recipe": "smoke", "set.stop.steps": "7", "key": "k"})
        page = unescape(shown.text)

        assert launch_preview["is_ready"]
        assert (launch_preview["problem"], launch_preview["problems"]) == ("", [])
        assert launch_preview["command"].split() == ["astraflow", "run", "smoke", "--headless", "--set", "stop.steps=7"]
        assert f">{launch_preview['command'].replace('--headless ', '')}<" in page, "the checkbox of the page is off"
        assert f">{launch_preview['toml']}<" in page
        assert launch_preview["machines"] in page
        assert launch_preview["cost"] in page
        assert all(check["message"] in page for check in launch_preview["checks"])
        assert launch_preview["checks"]
        assert (launch_preview["pools"], launch_preview["provider_checks"]) == ([], [])
        assert (await client.get("/api/v1/launches")).json()["total"] == 0


async def test_a_preview_names_the_invalid_settings(tmp_path: Path) -> None:
    async with page_of(tmp_path) as (_, client):
        launch_preview = await preview(client, recipe="smoke", set={"stop.steps": "many", "nodes.count": -1})
        assert not launch_preview["is_ready"]
        assert {problem["key"] for problem in launch_preview["problems"]} == {"stop.steps", "nodes.count"}
        unknown = await preview(client, recipe="smoke", set={"stop.stepz": 1})
        assert not unknown["is_ready"]
        assert "'stop.stepz'" in unknown["problem"]
        launched = await client.post(
            "/api/v1/launches",
            json={"recipe": "smoke", "set": {"stop.steps": "many"}, "reason": "a look"},
            headers={"Idempotency-Key": "wrong"},
        )
        assert (launched.status_code, launched.json()["code"]) == (409, "launch.invalid")
        assert "stop.steps" in launched.json()["detail"]


async def test_unknown_recipes_are_not_found_and_a_body_names_either_a_recipe_or_a_run(tmp_path: Path) -> None:
    async with page_of(tmp_path) as (_, client):
        assert (await client.post(PREVIEW, json={"recipe": "smokes"})).status_code == 404
        assert (await client.post(PREVIEW, json={"of": "smoke-1"})).status_code == 404
        for body in ({}, {"recipe": "smoke", "of": "smoke-1"}, {"recipe": "smoke", "limits": 1}):
            assert (await client.post(PREVIEW, json=body)).status_code == 422, body


async def test_the_shown_request_gives_the_same_preview(tmp_path: Path) -> None:
    """Covers text, plugin lists and switches: the request has each value as chosen, not in TOML notation."""
    data = tmp_path / "prompts.jsonl"
    data.write_text('{"prompt": "1 + 1", "answer": "2"}\n')
    settings = {
        "flows.train.dataset.kind": "jsonl",
        "flows.train.dataset.path": str(data),
        "flows.train.filters": "informative",
        "policies.solver.max_staleness": 3,
        "stop.reward": 0.5,
    }
    async with page_of(tmp_path, data=(str(tmp_path),)) as (_, client):
        launch_preview = await preview(client, recipe="smoke", set=settings, fleet=True, limit_s=77)
        assert launch_preview["is_ready"], launch_preview
        body = launch_preview["request"]["body"]
        assert body["set"] == settings
        again = await preview(client, **body)
        assert {**again, "checks": []} == {**launch_preview, "checks": []}, (
            "free memory and disk change between requests"
        )
        page = unescape(
            (
                await client.post(
                    "/runs/new/preview",
                    data={
                        "recipe": "smoke",
                        "fleet": "on",
                        "ends_by_itself": "on",
                        "limit_s": "77",
                        **{f"set.{key}": str(value) for key, value in settings.items()},
                    },
                )
            ).text
        )
        shown = page.partition("POST /api/v1/launches\n")[2].partition("\n\n")[2].partition("</pre>")[0]
        assert json.loads(shown) == body


@pytest.mark.long
async def test_a_preview_has_the_checks_and_prices_of_the_providers(recipes: Path, tmp_path: Path) -> None:
    async with page_of(tmp_path, recipes=(recipes,)) as (_, client):
        launch_preview = await preview(client, recipe="here", set={"fleet.pools.eu.max_nodes": 2})
        assert launch_preview["fleet"]
        assert re.findall(r"[\d.]+", launch_preview["cost"]) == ["2.00", "4.00", "1", "2"], "dollars per hour and nodes"
        (pool,) = launch_preview["pools"]
        assert (pool["name"], pool["max_nodes"], pool["node_usd_per_hour"]) == ("eu", 2, 2.0)
        assert {"list", "launch", "price"} == {check["kind"] for check in launch_preview["provider_checks"]}
        assert all(check["is_ok"] for check in launch_preview["provider_checks"]), launch_preview["provider_checks"]
        refused = await preview(client, recipe="here", set={"fleet.pools.eu.type": "enormous"})
        assert refused["is_ready"], "a failed provider check does not prevent the launch"
        assert any("enormous" in check["message"] for check in refused["provider_checks"] if not check["is_ok"])
        without = await preview(client, recipe="here", fleet=False)
        assert (without["pools"], without["provider_checks"]) == ([], [])


async def test_viewers_get_no_preview_and_the_documented_examples_are_valid(tmp_path: Path) -> None:
    schema = LaunchPreviewRequest.model_json_schema()
    async with page_of(tmp_path) as (web, admin):
        for example in schema["examples"]:
            assert (await preview(admin, **example))["is_ready"]
        async with web.in_role(admin, "viewer") as viewer:
            assert (await viewer.post(PREVIEW, json=STEPS)).status_code == 403
