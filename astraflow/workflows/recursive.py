"""Workflow of crafting agents that start others for parts of their goal, with one inventory and one budget."""

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.limits import EpisodeBounds
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Ending, Trajectory
from astraflow.environments.textcraft_world import CraftingWorld, world_of
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.workflows import workflows
from astraflow.workflows.base import PolicyClients, RewardScorer
from astraflow.workflows.components.agent_tree import Agent, AgentTree, AgentTreeOptions
from astraflow.workflows.components.answers import question_of
from astraflow.workflows.components.conversation import Turn
from astraflow.workflows.components.roles import Team

ROOT, CHILD = "agent", "subagent"

_SPAWN = re.compile(r"spawn\s+(.+)", re.IGNORECASE)
_FINISH = re.compile(r"finish\b\s*:?\s*(.*)", re.IGNORECASE)
_TARGET = re.compile(r"(\d{1,4}) ([a-z' ]+)")


def action_of(text: str) -> str:
    """Returns the last line of a turn that is not empty: the action.

    >>> action_of("I need planks first.\\nget 2 oak log\\n")
    'get 2 oak log'
    """
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def parse_targets(text: str) -> list[dict[str, int]] | None:
    """Returns the targets of each sub-agent, None for a text that cannot be read.

    >>> parse_targets("2 oak plank, 1 iron nail | 4 rope")
    [{'oak plank': 2, 'iron nail': 1}, {'rope': 4}]
    """
    targets = []
    for part in text.lower().rstrip(". ").split("|"):
        items = [_TARGET.fullmatch(item.strip()) for item in part.split(",")]
        wanted: dict[str, int] = {}
        for item in items:
            if item is None or int(item[1]) == 0:
                return None
            wanted[item[2]] = wanted.get(item[2], 0) + int(item[1])
        targets.append(wanted)
    return targets


def targets_text(targets: Mapping[str, int]) -> str:
    """Returns targets as text.

    >>> targets_text({"rope": 4, "oak log": 1})
    '4 rope, 1 oak log'
    """
    return ", ".join(f"{count} {item}" for item, count in targets.items())


class RecursiveOptions(AgentTreeOptions):
    """Policies of the roles, and the budget. Further limits: see `AgentTreeOptions`."""

    agent: Annotated[str, SettableBy.AGENT] = "solver"
    """Policy of the first agent."""
    subagent: Annotated[str, SettableBy.AGENT] = "solver"
    """Policy of the agents that other agents start; may be the policy of the first agent."""
    max_depth: int = Field(default=3, ge=0)
    """Depth of the deepest agents; the first agent has depth 0."""
    max_steps: int = Field(default=50, ge=1)
    """Commands and spawns of all agents of an episode together."""
    max_turns: int = Field(default=50, ge=1)
    """Turns of each agent."""
    max_repeats: int = Field(default=0, ge=0)
    """Equal turns in a row that end an agent with `repeated`; 0: no limit."""


@workflows.register("recursive", options=RecursiveOptions)
class Recursive(Team):
    """Crafting tasks of the dataset `textcraft` for agents that may start others; see TextCraft, arXiv:2605.06639.

    All agents of an episode take from one inventory and one budget of steps. An agent that starts others waits for
    them and sees only their last messages. Each agent gets 1 when its own targets are in the inventory at the time when
    it finishes, else 0. The flow's reward is not used.
    """

    def __init__(self, options: RecursiveOptions) -> None:
        super().__init__({ROOT: options.agent, CHILD: options.subagent})
        self._options = options

    @property
    def bounds(self) -> EpisodeBounds:
        return self._options.conversation_bounds(conversations=self._options.max_agents)

    async def run(self, task: Task, policies: PolicyClients, scorer: RewardScorer) -> tuple[Trajectory, ...]:
        """Runs the first agent and those below it until all have ended."""
        world = world_of(task.prompt, max_steps=self._options.max_steps)
        episode = _Episode(self, self._options, world, question_of(task.prompt), AgentTree(self._options, policies))
        episode.start({world.goal[0]: world.goal[1]}, parent=None)
        await episode.tree.run(episode.handle)
        return episode.tree.trajectories()


class _Episode:
    """World and agents of one episode."""

    def __init__(
        self, team: Team, options: RecursiveOptions, world: CraftingWorld, question: str, tree: AgentTree
    ) -> None:
        self.tree = tree
        self._roles = team.roles
        self._options = options
        self._world = world
        self._recipes = question.partition("\n\nGoal:")[0]

    def start(self, targets: Mapping[str, int], parent: Agent | None) -> None:
        """Starts an agent. Raises: InvalidInput when the recipes do not fit into `max_context`."""
        role, goal = ROOT if parent is None else CHILD, targets_text(targets)
        depth = 0 if parent is None else parent.depth + 1
        agent = self.tree.start(role, self._roles[role], self._prompt(goal, depth), goal, parent=parent)
        agent.targets = dict(targets)

    def handle(self, agent: Agent, turn: Turn) -> None:
        """Performs the action of a turn."""
        action = action_of(turn.text)
        if finish := _FINISH.fullmatch(action):
            agent.score = float(self._world.has(agent.targets))
            agent.finish(finish[1], Ending.DONE)
        elif self._world.steps_left == 0:
            agent.finish("", Ending.BUDGET)
        elif spawn := _SPAWN.fullmatch(action):
            self._spawn(agent, parse_targets(spawn[1]))
        else:
            result = self._world.perform(action)
            agent.malformed += result.is_malformed
            agent.tell(f"{result.text} {self._budget_text()}")

    def _spawn(self, agent: Agent, wanted: list[dict[str, int]] | None) -> None:
        if not wanted:
            agent.malformed += 1
            agent.tell("Cannot read the targets. Use `spawn COUNT ITEM, COUNT ITEM | COUNT ITEM`.")
            return
        self._world.steps_left = (self._world.steps_left or 0) - 1
        for targets in wanted:
            if refusal := self.tree.refusal(agent):
                agent.refusals.append(f"{targets_text(targets)} and what follows: {refusal}")
                break
            self._start_child(agent, targets)
        if not agent.children:
            refusals, agent.refusals = agent.refusals, []
            agent.tell(f"No sub-agent was started. {' '.join(refusals)}. {self._budget_text()}")

    def _start_child(self, agent: Agent, targets: Mapping[str, int]) -> None:
        try:
            self.start(targets, agent)
        except InvalidInput as problem:
            if problem.code != "workflow.prompt_too_long":
                raise
            agent.refusals.append(f"{targets_text(targets)}: the list of targets is too long")

    def _budget_text(self) -> str:
        return f"Steps left for all agents: {self._world.steps_left}."

    def _prompt(self, goal: str, depth: int) -> str:
        spawn = (
            "`spawn COUNT ITEM, ... | COUNT ITEM` starts sub-agents, each for the items between two `|`, with the same "
            "inventory and budget; you then see their last messages. "
            if depth < self._options.max_depth
            else ""
        )
        return (
            f"{self._recipes}\n\nYour targets: {goal}.\n{self._world.inventory_text}\n{self._budget_text()}\n\n"
            "End each message with one action on a line of its own: `get COUNT ITEM` takes an item that no recipe "
            "makes, `craft COUNT ITEM using COUNT ITEM, ...` follows a recipe, `inventory` shows the inventory. "
            f"{spawn}`finish MESSAGE` ends your work; do so when the inventory holds your targets."
        )
