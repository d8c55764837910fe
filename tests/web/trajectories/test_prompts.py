"""Groups of any step, whole groups behind a filter, and one prompt over time."""

from dataclasses import replace

import pytest

from astraflow.contract.ids import GroupId
from astraflow.contract.reports.evaluations import EvaluationReport
from astraflow.contract.reports.queries import (
    EventPage,
    EventQuery,
    GroupPage,
    GroupQuery,
    RewardHistogram,
    RewardQuery,
    SampledGroup,
    SampleIndex,
    SampleIndexQuery,
    TrajectoryPage,
    TrajectoryQuery,
)
from tests.fakes.synthetic_run import SyntheticRun
from tests.fakes.web import RunningWeb
from tests.web.page_elements import parsed
from tests.web.trajectories.test_trajectories import PAGE, link_to, recorded
from web.trajectories.filters import SampleFilter
from web.trajectories.prompts import prompt_history
from web.trajectories.queries import RunSamples, sample_page
from web.trajectories.views import group_samples

pytestmark = pytest.mark.anyio

ANSWERS = {3: "gahc", 9: "gehc", 20: "gehd", 31: "gehd"}
"""Answer of the two members of a prompt's group, by step."""


class Samples:
    """Groups of one prompt at some steps: both members right from step 20 on."""

    def __init__(self) -> None:
        base = next(iter(SyntheticRun().samples(150)))
        self._samples = [
            replace(
                base,
                ordinal=10 * step + member,
                group=GroupId(f"train:{step}"),
                step=step,
                completion_text=answer,
                reward=float(step >= 20),
                failure=None,
            )
            for step, answer in ANSWERS.items()
            for member in range(2)
        ]

    async def trajectories(self, query: TrajectoryQuery) -> TrajectoryPage:
        shown = [
            sample
            for sample in self._samples[::-1]
            if query.group in ("", sample.group)
            and query.step in (None, sample.step)
            and (query.max_reward is None or sample.reward <= query.max_reward)
        ]
        return TrajectoryPage(trajectories=tuple(shown[: query.limit]), has_older=False, has_newer=False)

    async def groups(self, query: GroupQuery) -> GroupPage:
        groups = [self._group(step) for step in reversed(ANSWERS)]
        matching = [group for group in groups if query.before is None or group.ordinal < query.before]
        return GroupPage(groups=tuple(matching[: query.limit]), has_older=False)

    async def sample_index(self, query: SampleIndexQuery) -> SampleIndex:
        return SampleIndex(steps=tuple(ANSWERS), prompts=())

    async def events(self, query: EventQuery) -> EventPage:
        return EventPage(events=(), has_older=False)

    async def rewards(self, query: RewardQuery) -> RewardHistogram:
        return RewardHistogram(bins=(), failed=0)

    async def evaluations(self, *, before: int | None = None, limit: int = 20) -> tuple[EvaluationReport, ...]:
        return ()

    def _group(self, step: int) -> SampledGroup:
        sample = next(sample for sample in self._samples if sample.step == step)
        return SampledGroup(
            group=sample.group,
            policy=sample.policy,
            flow=sample.flow,
            ordinal=10 * step + 1,
            at=0.0,
            step=step,
            outcome="trained",
            trajectories=2,
            failed=0,
            truncated=0,
            reward_mean=sample.reward,
            reward_min=sample.reward,
            reward_max=sample.reward,
            prompt="letters:7",
        )


SOURCE = RunSamples(source=Samples(), node_names={}, record_note="")


async def test_a_prompt_is_compared_at_its_first_middle_and_last_step_or_at_chosen_ones() -> None:
    history = await prompt_history(SOURCE, "train:9", "solver", [])
    chosen = await prompt_history(SOURCE, "train:9", "solver", [9, 31, 77])
    assert history is not None
    assert chosen is not None
    assert [at for at, _ in history.steps] == [3, 9, 20, 31]
    assert [(column.at, column.reward) for column in history.columns] == [(3, "0.00"), (20, "1.00"), (31, "1.00")]
    assert [[part.text for part in column.parts if part.is_new] for column in history.columns] == [[], ["e", "d"], []]
    assert [column.at for column in chosen.columns] == [9, 31]
    assert await prompt_history(RunSamples(source=Samples(), node_names={}, record_note=""), "no", "solver", []) is None


@pytest.mark.parametrize(
    ("step", "shown", "previous", "following"), [(9, 9, 3, 20), (12, 9, 3, 20), (99, 31, 20, None)]
)
async def test_a_step_without_groups_shows_the_nearest_one_that_has_some(
    step: int, shown: int, previous: int | None, following: int | None
) -> None:
    page = await sample_page(SOURCE, SampleFilter(step=step))
    assert {group.id for group in page.groups} == {f"train:{shown}"}
    assert page.requested_step == (None if step == shown else step)
    assert (page.neighbour(is_next=False), page.neighbour(is_next=True)) == (previous, following)


def test_the_summary_is_that_of_the_whole_group_also_when_a_filter_hides_members() -> None:
    whole = [replace(sample, group=GroupId("g")) for sample in Samples()._samples]
    (group,) = group_samples(whole[:1], {}, whole={("g", whole[0].policy): whole})
    assert (group.summary, group.reward, group.shown, len(group.members)) == ("4 of 8 correct", "0.50", 1, 1)
    assert group.tones == ("bad",) * 4 + ("good",) * 4
    assert group_samples(whole, {})[0].shown is None


async def test_a_filter_of_rewards_shows_one_member_of_a_group_and_the_truth_about_the_group(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await recorded(web, client)
        listed = (await client.get(f"{PAGE}?max_reward=0.5&ending=whole")).text
        group = parsed((await client.get(link_to(listed, r"/runs/1/groups/[^\"]+"))).text)
        over_time = parsed((await client.get(group.one(".page-actions").all("a")[0]["href"])).text)

    filtered, whole = parsed(listed).all(".group-score")[0], group.one(".group-score")
    assert filtered.text.startswith(whole.text)
    assert "shown" in filtered.text
    assert len(filtered.all(".dot")) == len(whole.all(".dot"))
    assert over_time.one("h1").text == "This prompt over time"
    assert over_time.all(".prompt-columns")[0].all("section")
