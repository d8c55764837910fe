"""Recorded reports, read by the release that wrote them and by other releases."""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from astraflow.contract.batching import BatchingFacts
from astraflow.contract.reports.report import Pace
from tests.fakes.synthetic_run import SyntheticRun
from tests.fakes.web import running_web
from tests.web.page_elements import parsed
from web.database.db import open_database
from web.database.tables import RunRecord
from web.history.report_json import report_from_json, report_to_json


def test_a_report_is_read_back_as_it_was_written() -> None:
    report = SyntheticRun().report(150)
    paced = dataclasses.replace(
        report.streams[0],
        pace=Pace(limit=40.5, outstanding=38.0, group_s=2.1, step_s=1.0),
        batching=BatchingFacts(batching="rows", largest_difference=1e-6, reasons="not packed: a layer"),
    )
    report = dataclasses.replace(report, streams=(paced, *report.streams))
    read = report_from_json(report_to_json(report))
    assert (read.flows, read.streams, read.learning_faults) == (report.flows, report.streams, report.learning_faults)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "no json", '{"flows": 3, "streams": [null, 7, {}]}'])
def test_an_unreadable_report_has_the_readable_parts(text: str) -> None:
    read = report_from_json(text)
    assert (read.simulated, read.flows) == ((), ())


def test_a_table_of_another_release_keeps_known_fields() -> None:
    content = json.loads(report_to_json(SyntheticRun().report(150)))
    for flow in content["flows"]:
        del flow["issued"], flow["episodes"]
    for stream in content["streams"]:
        del stream["staleness"], stream["groups"], stream["training"]["rewards"], stream["training"]["wait_fraction"]
        stream["of_a_later_release"] = 1
    read = report_from_json(json.dumps(content))
    assert (read.flows[0].issued, read.flows[0].episodes) == (0, {})
    assert (read.streams[0].staleness, read.streams[0].training.rewards) == ({}, ())
    assert math.isnan(read.streams[0].training.wait_fraction)
    assert read.streams[0].groups.accounted == 0
    assert read.streams[0].training.steps == SyntheticRun().report(150).streams[0].training.steps


@pytest.mark.anyio
async def test_runs_of_an_older_release_are_listed_and_shown(tmp_path: Path) -> None:
    database = open_database(tmp_path, "")
    content = json.loads(report_to_json(SyntheticRun().report(150)))
    del content["simulated"], content["streams"][0]["training"]
    old = [
        RunRecord(
            name=f"old-{number}",
            recipe="",
            dataflow="x:1",
            started_at=1.0,
            last_at=2.0,
            last_sequence=1,
            report_json=text,
        )
        for number, text in enumerate((json.dumps(content), "{}"))
    ]
    await database.write(lambda session: session.add_all(old))
    database.close()
    async with running_web(tmp_path, "127.0.0.1:9") as web, web.logged_in() as client:
        listed = await client.get("/runs")
        shown = [await client.get(f"/runs/{number}") for number in (1, 2)]
        huge = await client.get(f"/runs/{10**30}")
        answers = [await client.get(f"/api/v1/runs/{number}") for number in (1, 2)]
    assert listed.status_code == 200
    assert "old-0" in listed.text
    assert parsed(listed).has("small.run-note"), "a run without a recorded policy has a note"
    assert [page.status_code for page in shown] == [200, 200]
    assert huge.status_code == 422
    assert [answer.json()["report"] is not None for answer in answers] == [True, True]
