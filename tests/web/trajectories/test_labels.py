"""Labels of trajectories by page and API, and the data sets that they make."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from astraflow.cli.main import app
from astraflow.contract.ids import Version
from astraflow.datasets import datasets
from astraflow.models import build_tokenizer
from astraflow.workflows.dataset_answers import DatasetAnswers, DatasetAnswersOptions
from tests.fakes.web import RunningWeb
from tests.web.page_elements import parsed
from tests.web.trajectories.test_trajectories import PAGE, recorded
from web.trajectories.data_sets import DataSetKind, LabelledRollout, Rollout, data_set

TOKENIZER = build_tokenizer({"kind": "tiny"})
LABELS = "/api/v1/runs/1/labels"


def rollout(ordinal: int, completion: str, reward: float | None, *labels: str, **changes: object) -> LabelledRollout:
    values = {
        "ordinal": ordinal,
        "group": "train:1",
        "policy": "solver",
        "step": 3,
        "versions": "v2",
        "prompt_fields": {"question": "rev ab=", "answer": "ba"},
        "prompt_text": "<user>rev ab=",
        "completion_text": completion,
        "reference_text": "ba",
        "reward": reward,
        "reward_terms": {},
        "is_single_answer": True,
    }
    return LabelledRollout(rollout=Rollout(**{**values, **changes}), labels=frozenset(labels))  # type: ignore[arg-type] # fields by name


ROLLOUTS = [
    rollout(1, "ba", 1.0),
    rollout(2, "ab", 0.0),
    rollout(3, "ba.", 0.0, "wrong reward"),
    rollout(4, "bb", 1.0, "bad"),
    rollout(5, "", None),
    rollout(6, "ba", 1.0, is_single_answer=False),
    rollout(7, "ba", 1.0, prompt_fields={}),
    rollout(8, "ba", 2.0),
]


def test_a_data_set_has_the_fields_of_the_prompt_and_counts_what_it_leaves_out() -> None:
    chosen = data_set(DataSetKind.SFT, ROLLOUTS)
    assert [(row["question"], row["answer"], row["trajectories"]) for row in chosen.rows] == [
        ("rev ab=", "ba", [1]),
        ("rev ab=", "ab", [2]),
        ("rev ab=", "ba.", [3]),
        ("rev ab=", "ba", [8]),
    ]
    assert chosen.left_out == {
        "labelled bad": 1,
        "episode failed": 1,
        "several turns": 1,
        "fields of the prompt are not recorded": 1,
    }
    assert [row["answer"] for row in data_set(DataSetKind.PROMPTS, ROLLOUTS).rows] == ["ba"]


def test_labels_decide_which_answer_is_better_and_which_reward_is_expected() -> None:
    pairs = data_set(DataSetKind.PREFERENCE, ROLLOUTS[:4]).rows
    assert [(row["answer"], row["rejected"]) for row in pairs] == [("ba", "bb"), ("ba.", "ab")]
    examples = data_set(DataSetKind.REGRESSION, ROLLOUTS)
    assert [(row["completion"], row["label"]) for row in examples.rows] == [
        ("ba", 1.0),
        ("ab", 0.0),
        ("ba.", 1.0),
        ("bb", 0.0),
    ]
    assert examples.left_out["expected reward not in 0 to 1"] == 1


def test_recipes_read_the_saved_data_sets(tmp_path: Path) -> None:
    for kind, rejected in ((DataSetKind.SFT, ""), (DataSetKind.PREFERENCE, "rejected")):
        path = tmp_path / f"{kind.value}.jsonl"
        path.write_text(data_set(kind, ROLLOUTS[:4]).text)
        prompt = datasets.build({"kind": "jsonl", "path": str(path)}, 0).prompt(0)
        answers = DatasetAnswers(DatasetAnswersOptions(rejected_field=rejected))
        trajectories = [
            answers.trajectory(prompt, member, TOKENIZER, Version(0)) for member in range(answers.group_size)
        ]
        assert [trajectory.completion_text for trajectory in trajectories] == ["ba", "bb"][: answers.group_size]


def test_a_regression_test_fails_when_the_reward_of_the_recipe_differs(tmp_path: Path) -> None:
    path = tmp_path / "regression.jsonl"
    path.write_text(data_set(DataSetKind.REGRESSION, ROLLOUTS[:2]).text)
    command = ["calibrate", "reverse", str(path), "--within", "0.01"]
    assert CliRunner().invoke(app, command).exit_code == 0
    path.write_text(data_set(DataSetKind.REGRESSION, ROLLOUTS[:3]).text)
    failed = CliRunner().invoke(app, command)
    assert failed.exit_code == 1
    assert json.loads(failed.stdout)["misses"] == {"line:3": 0.0}


@pytest.mark.anyio
async def test_a_person_labels_trajectories_and_saves_them(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        newest = "/api/v1/runs/1/trajectories?limit=1&"
        (wrong,) = (await client.get(f"{newest}max_reward=0&ending=whole")).json()["items"]
        group_id = wrong["group"]
        members = (await client.get(f"/api/v1/runs/1/groups/{group_id}")).json()["members"]
        right = next(member for member in members if member["reward"] == 1.0)
        group = f"/runs/1/groups/{group_id}?policy=solver"
        page = parsed(await client.get(f"{PAGE}/{right['ordinal']}?min_reward=1"))
        fields = {"label": "good", "note": "short & <b>right</b>", "own": "ignored", "back": group}
        added = await client.post(f"{PAGE}/{right['ordinal']}/labels", data=fields)
        own = {"own": "  off \n topic ", "expected_reward": "0.5", "back": "//evil.example/runs/1/"}
        named = await client.post(f"{PAGE}/{wrong['ordinal']}/labels", data=own)
        refused = await client.post(f"{PAGE}/{wrong['ordinal']}/labels", data={"own": "x", "expected_reward": "half"})
        shown = parsed(await client.get(group))
        listed = (await client.get(LABELS)).json()["items"]
        label_page = parsed(await client.get("/runs/1/labels?label=good"))
        sft = (await client.get("/runs/1/data-sets/sft.jsonl?label=good")).text
        examples = (await client.get("/api/v1/runs/1/data-sets/regression")).text.splitlines()
        regression = [json.loads(row) for row in examples]
        filtered = await client.get(f"/runs/1/data-sets/sft.jsonl?of=trajectories&min_reward=1&group={group_id}")
        await client.post(f"/runs/1/labels/{listed[0]['id']}/remove", data={"back": "/runs/1/labels"})
        rest = (await client.get(LABELS)).json()["items"]
        audited = (await client.get("/api/v1/audit")).json()["items"]

    assert [button["data-key"] for button in page.one(".label-form").all("button[name=label]")] == ["1", "2", "3"]
    assert (
        page.one(".label-form")
        .one("input[name=back]")["value"]
        .endswith(f"/trajectories/{right['ordinal']}?min_reward=1.0")
    )
    assert (added.headers["location"], named.headers["location"]) == (group, "/runs/1/labels")
    assert refused.status_code == 303
    assert [(row["ordinal"], row["label"], row["expected_reward"]) for row in listed] == [
        (wrong["ordinal"], "off topic", 0.5),
        (right["ordinal"], "good", None),
    ]
    assert (listed[1]["note"], listed[1]["author"]) == ("short & <b>right</b>", "admin")
    assert sorted(chip["data-label"] for chip in shown.all("li.label")) == ["good", "off topic"]
    assert [row[0] for row in label_page.rows()[-1:]] == [str(right["ordinal"])]
    assert json.loads(sft)["answer"] == "afdb"
    assert {row["label"] for row in regression} == {0.5, 1.0}
    right_count = sum(member["reward"] == 1.0 for member in members)
    assert len(filtered.text.splitlines()) + int(filtered.headers["x-left-out"]) == right_count
    assert [row["label"] for row in rest] == ["good"]
    actions = [(entry["action"], entry["result"]) for entry in audited if entry["action"].startswith("trajectory")]
    assert sorted(actions) == [("trajectory.label", "done")] * 2 + [("trajectory.remove_label", "done")]


@pytest.mark.anyio
async def test_a_label_is_put_again_and_removed_by_programs(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        address = "/api/v1/runs/1/trajectories/385/labels"
        for note in ("first", "second"):
            assert (await client.put(address, json={"label": "bad", "note": note})).status_code == 200
        (label,) = (await client.get(f"{LABELS}?label=bad")).json()["items"]
        unknown = await client.put("/api/v1/runs/1/trajectories/999999/labels", json={"label": "bad"})
        blank = await client.put(address, json={"label": " "})
        gone = await client.delete(f"{LABELS}/{label['id']}")
        again = await client.delete(f"{LABELS}/{label['id']}")
        empty = parsed(await client.get("/runs/1/labels"))

    assert label["note"] == "second"
    assert (unknown.status_code, blank.status_code, gone.status_code, again.status_code) == (404, 422, 200, 404)
    assert empty.has(".empty-title")
