"""Learning on the first screen: headline, chart by step, and the samples of a step."""

import json
from dataclasses import replace
from typing import Any

import pytest

from astraflow.contract.errors import Unavailable
from astraflow.contract.ids import FlowId, GroupId, PolicyId, Version
from astraflow.contract.learning_faults import LearningFault
from astraflow.contract.reports.queries import (
    GroupPage,
    GroupQuery,
    SampledGroup,
    SampledPrompt,
    SampleIndex,
    SampleIndexQuery,
    TrajectoryPage,
    TrajectoryQuery,
)
from astraflow.contract.reports.report import SampledTrajectory
from tests import make
from tests.fakes.synthetic_run import SyntheticRun
from tests.fakes.web import RunningWeb
from tests.web.page_elements import parsed
from tests.web.trajectories.test_trajectories import recorded
from web.overview.learning import change_headline, evaluation_rows, with_means
from web.overview.samples import step_samples

pytestmark = pytest.mark.anyio

REWARD = "reward_rollouts"


@pytest.mark.parametrize(
    ("values", "metric", "headline", "tone"),
    [
        ([], REWARD, "No training step yet", ""),
        ([0.21], REWARD, "Reward is 0.21 after 1 step", ""),
        ([0.2, 0.22, 0.21, 0.5, 0.9, 0.9], REWARD, "Reward rose from 0.21 to 0.49 in 6 steps", "good"),
        ([0.9, 0.9, 0.3, 0.3], REWARD, "Reward fell from 0.90 to 0.60 in 4 steps", "warn"),
        ([0.5, None, 0.51], REWARD, "Reward is steady at 0.51 after 3 steps", ""),
        ([2.0, 2.0, 0.5, 0.5], "loss", "Loss fell from 2 to 1.25 in 4 steps", "good"),
    ],
)
def test_the_headline_tells_what_the_metric_did_since_the_first_step(
    values: list[float | None], metric: str, headline: str, tone: str
) -> None:
    assert change_headline(values, metric) == (headline, tone)


def test_steps_have_the_mean_of_the_last_ten() -> None:
    steps = [(float(step), step, None if step == 2 else float(step)) for step in range(1, 13)]
    rows = with_means(steps, REWARD)
    assert rows[1][1]["mean"] == 1.0
    assert rows[-1:] == [(12.0, {"step": 12, REWARD: 12.0, "mean": pytest.approx(sum((*range(3, 13),)) / 10)})]


def test_evaluations_are_placed_at_the_version_that_they_pinned() -> None:
    rounds = [replace(make.round_report(2), versions={PolicyId("solver"): Version(40)}), make.round_report(1)]
    rows = evaluation_rows(rounds, "solver")
    assert [values["evaluation"] is not None for _, values in rows] == [True, True]
    assert rows[-1][1]["step"] == 40


class FakeSource:
    """Trajectories of some steps; the prompt `p` has groups of all of them."""

    def __init__(self, rewards: dict[int, tuple[float, ...]]) -> None:
        base = next(iter(SyntheticRun().samples(150)))
        self.samples = [
            replace(
                base,
                ordinal=step * 10 + member,
                group=GroupId(f"train:{step}"),
                step=step,
                reward=reward,
                failure=None,
                completion_text=f"{step}.{member}",
            )
            for step, members in rewards.items()
            for member, reward in enumerate(members)
        ]

    async def trajectories(self, query: TrajectoryQuery) -> TrajectoryPage:
        matching = [sample for sample in self.samples if _matches(sample, query)]
        shown = matching[: query.limit] if query.after is not None else matching[::-1][: query.limit]
        return TrajectoryPage(trajectories=tuple(shown), has_older=False, has_newer=False)

    async def groups(self, query: GroupQuery) -> GroupPage:
        assert query.prompt == "p"
        by_step: dict[int, list[float]] = {}
        for sample in self.samples:
            by_step.setdefault(sample.step or 0, []).append(sample.reward)
        return GroupPage(groups=tuple(_group(step, rewards) for step, rewards in by_step.items()), has_older=False)

    async def sample_index(self, query: SampleIndexQuery) -> SampleIndex:
        steps = tuple(sorted({sample.step or 0 for sample in self.samples}))
        prompt = SampledPrompt(prompt="p", flow=FlowId("train"), steps=len(steps), first=steps[0], last=steps[-1])
        return SampleIndex(steps=steps, prompts=(prompt,))


def _matches(sample: SampledTrajectory, query: TrajectoryQuery) -> bool:
    step, low, high = sample.step or 0, query.min_reward, query.max_reward
    return (
        (query.step in (None, step) and (query.first_step or 0) <= step)
        and (query.last_step is None or step <= query.last_step)
        and (low is None or sample.reward >= low)
        and (high is None or sample.reward <= high)
        and query.group in ("", sample.group)
    )


def _group(step: int, rewards: list[float]) -> SampledGroup:
    values: dict[str, Any] = {"ordinal": step, "at": 0.0, "outcome": "trained", "failed": 0, "truncated": 0}
    return SampledGroup(
        group=GroupId(f"train:{step}"),
        policy=PolicyId("solver"),
        flow=FlowId("train"),
        step=step,
        trajectories=len(rewards),
        reward_mean=sum(rewards) / len(rewards),
        reward_min=min(rewards),
        reward_max=max(rewards),
        **values,
    )


SOURCE = FakeSource({3: (0.0, 1.0, 0.0), 7: (1.0, 0.0), 20: (1.0, 1.0)})


@pytest.mark.parametrize(
    ("step", "shown", "good", "bad", "earlier", "later"),
    [
        (None, 20, "20.0", "7.1", "3.2", "20.0"),
        (7, 7, "7.0", "7.1", "7.1", "20.0"),
        (1, 3, "3.1", "3.2", "3.2", "20.0"),
        (15, 7, "7.0", "7.1", "7.1", "20.0"),
    ],
)
async def test_the_samples_are_those_of_the_step_or_of_the_nearest_one_that_has_some(
    step: int | None, shown: int, good: str, bad: str, earlier: str, later: str
) -> None:
    samples = await step_samples(SOURCE, "solver", step)
    assert samples.step == shown
    assert samples.good is not None
    assert samples.bad is not None
    assert samples.earlier is not None
    assert samples.later is not None
    assert samples.good.completion == good
    assert samples.bad.completion.split(".")[0] == bad.split(".")[0]
    assert samples.earlier.completion.split(".")[0] == earlier.split(".")[0]
    assert samples.later.completion.split(".")[0] == later.split(".")[0]


async def test_a_run_without_samples_shows_none_and_an_outage_its_cause() -> None:
    class Unreachable(FakeSource):
        async def trajectories(self, query: TrajectoryQuery) -> TrajectoryPage:
            raise Unavailable("cannot reach dataflow: refused; try again", code="service.unavailable")

    assert (await step_samples(FakeSource({}), "solver", None)).step is None
    assert (await step_samples(Unreachable({}), "solver", 4)).problem.startswith("cannot reach dataflow")


async def test_without_a_fleet_the_first_screen_leads_with_learning(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        page = parsed(await client.get("/?policy=solver&step=40"))
        part = await client.get("/learning?policy=solver&step=40&level=h1")
        odd = await client.get("/?policy=solver&step=")
        wrong = await client.get("/?step=x")

    heading = page.one("h1")
    assert heading["class"] == "learned-headline"
    assert heading.text.startswith("Reward ")
    steps = json.loads(page.one("#table-steps").text)
    assert set(steps["columns"]) == {REWARD, "mean", "step"}
    assert page.one("#learned").one("figure")["data-samples"].endswith("&step=")
    assert page.one("#samples-title").numbers[1] == 40, "the requested step, beside the nearest one with samples"
    assert {card["data-kind"] for card in page.all("article.sample")} >= {"good"}
    assert page.one(".step-form").one("input[name=step]")["value"] == "40"
    assert not page.has("[data-live-text=frame/mode]"), "there is no mode without a fleet"
    assert page.one(".diagnosis-headline").tag == "h2"
    assert parsed(part).one("#samples-title").numbers == page.one("#samples-title").numbers
    assert (odd.status_code, wrong.status_code) == (200, 200)


async def test_faults_of_learning_stand_below_the_headline_and_on_the_page_of_the_run_doctor(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        first_screen = parsed(await client.get("/?policy=solver"))
        doctor = parsed(await client.get("/doctor"))
        report = (await client.get("/api/v1/report")).json()

    (fault,) = first_screen.one(".learning-faults").all("li")
    evidence = "80% of the latest 400 answers to 50 prompts are one text: '<b>yes</b>'"
    assert (fault["data-tone"], fault.one("bdi").text, fault.has("b")) == ("warn", evidence, False)
    (shown,) = doctor.all("article.fault")
    assert shown.one("h2").text == LearningFault.ANSWERS_REPEAT.headline
    assert shown.all("dd")[0].text == evidence
    assert len(doctor.one(".absent-faults").all("li")) == len(LearningFault) - 1
    assert [fault["cause"] for fault in report["learning_faults"]] == ["answers_repeat"]


async def test_with_a_fleet_capacity_leads(pages: RunningWeb) -> None:
    async with pages.logged_in() as client:
        await recorded(pages, client)
        page = parsed(await client.get("/"))

    assert page.one("h1")["class"] == "diagnosis-headline"
    assert page.one(".learned-headline").tag == "h2"
    assert page.has("[data-live-text=frame/mode]")
