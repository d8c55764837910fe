"""Workflow of one policy that acts in an environment."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.limits import EpisodeBounds
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Ending, Trajectory
from astraflow.environments import environments
from astraflow.environments.base import Observation
from astraflow.rewards.base import Score
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.workflows import workflows
from astraflow.workflows.base import OnePolicy, PolicyClient, PolicyClients, RewardScorer, episode_seed
from astraflow.workflows.components.action_parsers import INSTRUCTIONS, ActionFormat, UnreadableAction, parse_action
from astraflow.workflows.components.conversation import Conversation, ConversationOptions, shortened
from astraflow.workflows.components.environment_episodes import EnvironmentSource, OpenEnvironment

_SPEAKER = "environment"
_SUCCESSES = (Ending.WON, Ending.DONE)
MAX_STATE_CHARACTERS = 2000


class ActOptions(ConversationOptions):
    """Policy, environment, and form of messages and actions of the workflow."""

    environment: Annotated[dict[str, Any], environments]
    """Environment: its kind and options."""
    policy: Annotated[str, SettableBy.AGENT] = "solver"
    """Policy that acts."""
    action_format: Annotated[ActionFormat, SettableBy.AGENT] = ActionFormat.LAST_LINE
    """Form of an action: `last_line`, `tag` (`<action>...</action>`), `json` (`{"action": ...}`) or `number` (of an
    admissible action)."""
    instructions: Annotated[str, SettableBy.AGENT] = ""
    """Text at the begin of the first message, instead of the description of the action format."""
    worked_example: Annotated[str, SettableBy.AGENT] = ""
    """Example of an episode, after the instructions; empty: none."""
    list_actions: Annotated[bool, SettableBy.AGENT] = True
    """Shows the admissible actions with each observation, where the environment enumerates them."""
    max_observation_characters: int = Field(default=8000, ge=1)
    """Longer observations are cut."""
    failure_reward: float = Field(default=0.0, ge=-1e6, le=1e6)
    """Added to the reward of an episode that does not reach the goal of its environment."""
    turn_discount: float = Field(default=1.0, gt=0, le=1)
    """Weight of the rewards after a turn, as seen from that turn."""


@workflows.register("act", options=ActOptions)
class Act(OnePolicy):
    """One policy in one environment, which gives the reward; the flow's reward is not used.

    An episode is one trajectory: the first message with the instructions and the first observation, then turns and
    observations. An unreadable action does not reach the environment; the policy is informed.
    """

    def __init__(self, options: ActOptions) -> None:
        super().__init__(options.policy)
        self._options = options
        self._source = EnvironmentSource(options.environment)

    @property
    def bounds(self) -> EpisodeBounds:
        return self._options.conversation_bounds(conversations=1)

    async def start(self) -> None:
        """Starts the environment's processes and checks that they work here."""
        await self._source.start()

    async def close(self) -> None:
        await self._source.close()

    async def run(self, task: Task, policies: PolicyClients, scorer: RewardScorer) -> tuple[Trajectory, ...]:
        """Acts until the environment or a limit ends the episode. The reward is the sum of the steps' rewards."""
        async with self._source.open(task.prompt, episode_seed(task)) as environment:
            episode = _Episode(self._options, environment, policies[self._policy])
            return (await episode.run(),)


@dataclass(slots=True)
class _Counts:
    rewards: list[float] = field(default_factory=list)
    """Reward of each turn."""
    terms: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    malformed: int = 0


class _Episode:
    """One episode in an environment that has begun."""

    def __init__(self, options: ActOptions, environment: OpenEnvironment, client: PolicyClient) -> None:
        self._options = options
        self._environment = environment
        self._client = client
        self._counts = _Counts()

    async def run(self) -> Trajectory:
        options, environment = self._options, self._environment
        first = environment.observation
        self._count(first)
        conversation = Conversation(
            PolicyId(options.policy), self._client, options, [_user(self._first_message(first))]
        )
        ending = None
        while ending is None:
            turn = await conversation.answer()
            self._counts.rewards.append(0.0)
            message, ending = await self._step(turn.text)
            ending = ending or conversation.ending(self._counts.malformed)
            if ending is None and not conversation.append([_user(message)], speaker=_SPEAKER):
                ending = Ending.CONTEXT
        return self._trajectory(conversation, ending)

    async def _step(self, text: str) -> tuple[str, Ending | None]:
        """Performs the action of a turn; returns the next message and the ending that the environment gave."""
        observation = self._environment.observation
        try:
            action = parse_action(text, self._options.action_format, observation.actions)
        except UnreadableAction as problem:
            self._counts.malformed += 1
            return f"{problem}{self._listed(observation)}", None
        observation = await self._environment.act(action)
        self._count(observation)
        self._counts.rewards[-1] += observation.reward
        self._counts.malformed += observation.is_malformed
        return self._shown(observation), observation.ending

    def _count(self, observation: Observation) -> None:
        for name, value in observation.reward_terms.items():
            self._counts.terms[name] = self._counts.terms.get(name, 0.0) + value
        self._counts.metrics.update(observation.metrics)

    def _first_message(self, observation: Observation) -> str:
        options = self._options
        if options.action_format is ActionFormat.NUMBER and not observation.actions:
            raise RolloutFailed(
                "cannot act by number: the environment does not enumerate its actions; use another action_format",
                boundary=Boundary.WORKFLOW,
                code="workflow.no_actions",
            )
        instructions = options.instructions or INSTRUCTIONS[options.action_format]
        example = f"Example:\n{options.worked_example}" if options.worked_example else ""
        return "\n\n".join(part for part in (instructions, example, self._shown(observation)) if part)

    def _shown(self, observation: Observation) -> str:
        text = shortened(observation.text, self._options.max_observation_characters)
        return f"{text}{self._listed(observation)}"

    def _listed(self, observation: Observation) -> str:
        is_numbered = self._options.action_format is ActionFormat.NUMBER
        if not observation.actions or not (self._options.list_actions or is_numbered):
            return ""
        lines = (f"{index}. {action}" if is_numbered else action for index, action in enumerate(observation.actions, 1))
        return "\n\n" + shortened("Actions:\n" + "\n".join(lines), self._options.max_observation_characters)

    def _trajectory(self, conversation: Conversation, ending: Ending) -> Trajectory:
        counts, options = self._counts, self._options
        if ending not in _SUCCESSES:
            counts.rewards[-1] += options.failure_reward
        state = self._environment.observation.state
        return conversation.builder.build(
            Score(value=sum(counts.rewards), terms=counts.terms),
            metrics={"turns": conversation.turns, "malformed": counts.malformed, **counts.metrics},
            turn_rewards=counts.rewards,
            turn_discounts=[options.turn_discount] * conversation.turns if options.turn_discount < 1 else (),
            labels={
                "environment": str(options.environment.get("kind")),
                **({"state": shortened(state, MAX_STATE_CHARACTERS)} if state else {}),
            },
            ending=ending,
        )


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
