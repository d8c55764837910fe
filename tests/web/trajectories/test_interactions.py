"""Pages and API of episodes with several turns, tools, policies and sub-agents."""

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from astraflow.contract.rollouts.spans import Ending
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import RunningWeb
from tests.web.page_elements import parsed
from tests.web.trajectories.test_trajectories import PAGE, recorded
from web.components.texts import BLOCK_CHARS

pytestmark = pytest.mark.anyio

API = "/api/v1/runs/1/trajectories"
HOSTILE = "<img src=x onerror=alert(1)>\"'{{7*7}}\u202e\x1b</pre></details><script>"


@pytest.fixture(autouse=True)
def interactions(fake: FakeControlPlane) -> None:
    fake.synthetic_run.has_interactions = True
    fake.synthetic_run.policies = ("solver", "judge")


async def items(client: Any, query: str) -> list[dict[str, Any]]:
    answer = await client.get(f"{API}?{query}")
    assert answer.status_code == 200, answer.text
    listed_items: list[dict[str, Any]] = answer.json()["items"]
    return listed_items


@pytest.mark.long
async def test_the_api_has_the_fields_and_filters_of_interactions(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        planners = await items(client, "role=planner&limit=8")
        of_task = await items(client, f"task={planners[0]['task']}&limit=50")
        won = await items(client, "ending=won")
        formatted = await items(client, "term=format&min_term=0.85&ending=done")
        (with_tokens,) = await items(client, "role=planner&limit=1&tokens=true")
        counts = (await client.get("/api/v1/runs/1/rewards?role=planner&term=correct")).json()
        invalid = await client.get(f"{API}?ending=unknown")

    assert {item["role"] for item in of_task} == {"planner", "searcher", "verifier"}
    child = next(item for item in of_task if item["role"] == "searcher")
    assert (child["index"], child["parent"], child["parent_turn"], child["turn_rewards"]) == (1, 0, 1, [0.5, 0.0])
    assert child["ending"] == "done"
    assert planners[0]["labels"]["game"] == "find the key"
    assert {span["speaker"] for span in planners[0]["spans"]} == {"", "tool", "environment"}
    assert {item["ending"] for item in won} == {"won"}
    assert formatted and all(item["reward_terms"]["format"] >= 0.85 for item in formatted)
    assert planners[0]["token_ends"] == planners[0]["logprobs"] == []
    assert len(with_tokens["token_ends"]) == len(with_tokens["logprobs"]) == with_tokens["model_tokens"]
    assert (set(counts["roles"]), set(counts["terms"])) == ({"planner"}, {"correct", "format", "length"})
    assert sum(counts["endings"].values()) == sum(bin_["trajectories"] for bin_ in counts["bins"])
    assert invalid.status_code == 422


async def test_the_list_is_filtered_by_ending_role_and_term(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        everything = parsed(await client.get(PAGE))
        shown = parsed(await client.get(f"{PAGE}?ending=turns&role=planner&term=format&min_term=0.5"))
        file = json.loads((await client.get("/runs/1/rewards.json?term=format&of_term=true")).text)
        odd = await client.get(f"{PAGE}?min_term=3&role=nobody&term=nothing&max_term=1")

    form = everything.one("form.filters")
    assert {option.text for option in form.one("select[name=role]").all("option")} >= {"planner", "verifier"}
    assert len(form.one("select[name=ending]").all("option")) == 4 + len(Ending)
    assert [link["href"] for link in everything.one("ul.endings").all("a") if "ending=turns" in link["href"]]
    fields = shown.one("form.filters").fields()
    assert fields["min_term"] == "0.5"
    for name, value in (("role", "planner"), ("term", "format"), ("ending", "turns")):
        selected = [
            option for option in shown.one(f"select[name={name}]").all("option") if "selected" in option.attributes
        ]
        assert [option.attributes.get("value", option.text) for option in selected] == [value]
    assert shown.all("a.member-reward")
    assert len(shown.all("figure.spread")) == 2, "rewards, and values of the term"
    assert any("min_term=" in link["href"] for link in shown.all("a.bar"))
    assert sum(row["trajectories"] for row in file) > 0
    assert odd.status_code == 200
    assert parsed(odd).one("#samples").has(".empty")


async def test_a_trajectory_shows_its_episode_turns_and_result(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        (searcher, *_) = await items(client, "role=searcher&limit=1")
        page = parsed(await client.get(f"{PAGE}/{searcher['ordinal']}"))
        root = page.one("ol.episode").all("a")[0]
        planner = parsed(await client.get(root["href"]))
        whole = parsed(await client.get(root["href"] + "?all_texts=true"))

    assert [item["data-depth"] for item in page.one("ol.episode").all("li")] == ["0", "1", "2"]
    assert page.one("ol.episode").one("a[aria-current=page]").text == "searcher"
    assert [turn["data-kind"] for turn in planner.all(".turn")] == [
        "prompt",
        "model",
        "tool",
        "model",
        "environment",
        "model",
    ]
    assert [block["data-kind"] for block in planner.all("details.block")] == ["reasoning", "call", "result"]
    assert len(planner.texts(".turn-reward")) == 3
    assert "hall" in planner.one("pre[data-part=state]").text
    assert planner.has("a[data-key=w]")
    cut, complete = (
        next(block for block in view.all("details.block") if block["data-kind"] == "result")
        for view in (planner, whole)
    )
    assert len(cut.one("pre").text) <= BLOCK_CHARS < len(complete.one("pre").text)
    assert any("all_texts=true" in link["href"] for link in planner.one("#conversation").all("a"))


async def test_the_token_view_needs_no_script_for_text_and_shades(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        (planner, *_) = await items(client, "role=planner&limit=1&tokens=true")
        page = parsed(await client.get(f"{PAGE}/{planner['ordinal']}?token=0"))
        beyond = await client.get(f"{PAGE}/{planner['ordinal']}?token=99999999")

    pieces = page.all("pre.tokens")
    assert sum(len(piece.all("i")) for piece in pieces) == planner["model_tokens"]
    assert [number for piece in pieces for number in json.loads(piece["data-logprobs"])] == pytest.approx(
        planner["logprobs"], abs=1e-3
    )
    assert all(piece["tabindex"] == "0" and piece["data-version"].startswith("v") for piece in pieces)
    assert {token["class"] for piece in pieces for token in piece.all("i")} <= {f"p{level}" for level in range(6)}
    assert beyond.status_code == 200


@pytest.mark.long
async def test_hostile_texts_of_an_interaction_stay_text(web: RunningWeb, fake: FakeControlPlane) -> None:
    samples = fake.synthetic_run.samples

    def hostile(sequence: int) -> list[Any]:
        return [
            replace(
                sample,
                role=HOSTILE,
                labels={HOSTILE: HOSTILE, "state": HOSTILE},
                reward_terms={HOSTILE: 0.5},
                prompt_text=sample.prompt_text.replace("house", HOSTILE),
                completion_text=(HOSTILE + sample.completion_text)[: len(sample.completion_text)],
                spans=tuple(replace(span, speaker=span.speaker and HOSTILE) for span in sample.spans),
            )
            for sample in samples(sequence)
        ]

    fake.synthetic_run.samples = hostile  # type: ignore[method-assign]
    async with web.logged_in() as client:
        await recorded(web, client)
        (first, *_) = await items(client, "limit=1")
        query = {"role": HOSTILE, "term": HOSTILE}
        answers = [
            await client.get(PAGE),
            await client.get(PAGE, params=query),
            await client.get(f"{PAGE}/{first['ordinal']}"),
            await client.get(f"{PAGE}/{first['ordinal']}?token=0"),
            await client.get(f"/runs/1/groups/{first['group']}"),
        ]
    for answer in answers:
        assert answer.status_code == 200
        assert "<img src=x" not in answer.text
        assert "</details><script>" not in answer.text
        assert "&lt;img src=x onerror=alert(1)&gt;" in answer.text
        assert "\x1b" not in re.sub('="[^"]*"', "", answer.text), "outside of the values of fields"
        assert "{{7*7}}" in answer.text


async def test_the_run_page_has_the_endings_and_reward_terms(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        page = parsed(await client.get("/runs/1"))
        while not page.has(".endings-chart"):  # steps are copied beside the reports
            await asyncio.sleep(0.02)
            page = parsed(await client.get("/runs/1"))
        chart = page.one(".endings-chart")
        legend = [link["href"].partition("?")[0] for link in chart.all("a")]
        own_page = await client.get(legend[0])
        of_term = await client.get("/runs/1/charts/reward_term_format")
        series = await client.get("/api/v1/series.json?run_id=1&chart=reward_term_format")

    assert [address.rpartition("/")[2] for address in legend] == [
        "ending_done",
        "ending_won",
        "ending_lost",
        "ending_turns",
        "ending_malformed",
    ]
    options = json.loads(chart["data-options"])
    assert len(options["lines"]) == len(legend)
    columns = json.loads(page.one("#table-steps").text)["columns"]
    latest = [columns[line["value"]][-1] for line in options["lines"]]
    shares = [item[0] if isinstance(item, list) else item for item in latest]  # a list repeats its first item
    assert sum(shares) == pytest.approx(1, abs=0.01)
    assert own_page.status_code == of_term.status_code == 200
    assert series.status_code == 200, series.text
