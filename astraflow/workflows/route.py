"""Workflow of a router that picks one of several experts, such as a small and a large model."""

from typing import Annotated

from pydantic import Field, field_validator

from astraflow.contract.rollouts.limits import EpisodeBounds
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.workflows import workflows
from astraflow.workflows.base import PolicyClients, RewardScorer
from astraflow.workflows.components.action_parsers import tagged_texts
from astraflow.workflows.components.answers import AnswerOptions, question_of
from astraflow.workflows.components.roles import (
    Team,
    ask_in_role,
    at_once,
    scored_answer,
    trajectories_of,
)


def parse_expert(text: str, experts: tuple[str, ...]) -> str | None:
    """Returns the expert that the last tag names; None without a tag or for an unknown expert.

    >>> parse_expert("Easy. <expert>small</expert>", ("small", "large")), parse_expert("small", ("small", "large"))
    ('small', None)
    """
    tags = tagged_texts(text, "expert")
    return tags[-1] if tags and tags[-1] in experts else None


class RouteOptions(AnswerOptions):
    """Policies of the roles, and limits."""

    router: Annotated[str, SettableBy.AGENT] = "router"
    """Policy that picks an expert; may be an expert's."""
    experts: Annotated[tuple[str, ...], SettableBy.AGENT] = Field(default=("small", "large"), min_length=2)
    """Policies that answer, from the cheapest to the most expensive."""
    choice_max_new_tokens: int = Field(default=128, ge=1)
    """Length limit of a choice. Tokens."""
    correct_threshold: float = 0.5
    """Smallest reward of a correct answer."""

    @field_validator("experts")
    @classmethod
    def _check_experts(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError("an expert is listed twice; name each policy once")
        return names


@workflows.register("route", options=RouteOptions)
class Route(Team):
    """A `router` picks one of the experts, whose roles are `expert_1` for the cheapest, `expert_2` and so on.

    The router gets 1 when its expert is right and no cheaper one is, else 0; so the cheaper experts answer too, at the
    same time. A text without a choice has the reward 0, and the cheapest expert answers. Each answer has its own
    reward. The picked expert comes last and has the label `is_picked`.
    """

    def __init__(self, options: RouteOptions) -> None:
        experts = {f"expert_{rank}": name for rank, name in enumerate(options.experts, start=1)}
        super().__init__({"router": options.router, **experts})
        self._options = options
        self._instruction = (
            f"You are the router. Pick the expert that shall answer the task: {', '.join(options.experts)}, from the "
            "cheapest to the most expensive. Pick the cheapest one that will be right. "
            f"End with <expert>{options.experts[0]}</expert> or another name."
        )

    @property
    def bounds(self) -> EpisodeBounds:
        return self._options.answer_bounds(trajectories=1 + len(self._options.experts))

    async def run(self, task: Task, policies: PolicyClients, scorer: RewardScorer) -> tuple[Trajectory, ...]:
        """Picks an expert; it answers, and so do the cheaper ones."""
        options = self._options
        router = self.reviewer(
            "router", policies, options, self._instruction, max_new_tokens=options.choice_max_new_tokens
        )
        choice = await ask_in_role(router, question_of(task.prompt))
        picked = parse_expert(choice.text, options.experts)
        count = options.experts.index(picked or options.experts[0]) + 1
        experts = [self.role(f"expert_{rank}", policies, options) for rank in range(1, count + 1)]
        answers = await at_once(scored_answer(expert, task, scorer, parent=choice) for expert in experts)
        is_correct = [candidate.reward >= options.correct_threshold for candidate in answers]
        answers[-1].labels["is_picked"] = "yes"
        choice.score = float(picked is not None and is_correct[-1] and not any(is_correct[:-1]))
        choice.metrics = {"readable": float(picked is not None), "answer_reward": answers[-1].reward}
        return trajectories_of((choice, *answers))
