"""Agents of one episode that start others: a tree whose agents act in rounds, so that it can be replayed."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import Field

from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.trajectories import Ending, Trajectory
from astraflow.rewards.base import Score
from astraflow.workflows.base import PolicyClients
from astraflow.workflows.components.conversation import Conversation, ConversationOptions, Turn, shortened
from astraflow.workflows.components.roles import at_once

MAX_MESSAGE_CHARACTERS = 4000
"""Longer tasks and messages between agents are cut."""
SYSTEM = "system"
"""Speaker of what an agent reads after its first prompt."""


class AgentTreeOptions(ConversationOptions):
    """Limits of a tree of agents. `max_turns` and `max_context` hold for each agent."""

    max_depth: int = Field(default=1, ge=0)
    """Depth of the deepest agents; the first agent has depth 0."""
    max_children: int = Field(default=4, ge=1)
    """Agents that one turn may start."""
    max_agents: int = Field(default=16, ge=1)
    """Agents of an episode, the first one included."""
    max_concurrent: int = Field(default=8, ge=1)
    """Agents of an episode that are generated for at once."""


@dataclass(slots=True, kw_only=True, eq=False)
class Agent:
    """One agent with a conversation of its own: one trajectory."""

    role: str
    task: str
    """Task, or a short form of it, for display."""
    conversation: Conversation
    parent: "Agent | None" = None
    parent_turn: int | None = None
    depth: int = 0
    children: "list[Agent]" = field(default_factory=list)
    """Agents that it started in its last turn, on which it waits."""
    refusals: list[str] = field(default_factory=list)
    """Texts about agents that it could not start in its last turn."""
    malformed: int = 0
    """Turns that could not be read. Count."""
    targets: Mapping[str, int] = field(default_factory=dict)
    """Items that it shall bring about, in worlds with items."""
    message: str = ""
    """Result that its parent sees."""
    score: Score | float = 0.0
    ending: Ending | None = None
    """Set once it has ended."""

    @property
    def is_ready(self) -> bool:
        """Returns whether it acts in the next round."""
        return self.ending is None and not self.children

    def finish(self, message: str, ending: Ending) -> None:
        """Ends the agent. message: its result, for its parent."""
        self.message, self.ending = shortened(message, MAX_MESSAGE_CHARACTERS), ending

    def tell(self, text: str) -> None:
        """Appends a text that the agent reads before its next turn; ends it when there is no room."""
        if self.ending is None and not self.conversation.append([{"role": "user", "content": text}], speaker=SYSTEM):
            self.finish("", Ending.CONTEXT)


class AgentTree:
    """Agents of one episode.

    In each round, the agents that wait for nothing are generated for at the same time, and then their turns are handled
    in the order in which the agents were started. Therefore shared state, such as a budget or a world,
    depends only on their texts and not on the speed of an engine, and another node can continue a task in the same way.
    An agent that started others acts again when all of them have ended; it then sees their messages.
    """

    def __init__(self, options: AgentTreeOptions, policies: PolicyClients) -> None:
        self.agents: list[Agent] = []
        """All agents, in the order in which they were started."""
        self._options = options
        self._policies = policies
        self._slots = asyncio.Semaphore(options.max_concurrent)

    def start(self, role: str, policy: PolicyId, prompt: str, task: str, *, parent: Agent | None = None) -> Agent:
        """Starts an agent. Raises: InvalidInput when its prompt does not fit into `max_context`."""
        messages = [{"role": "user", "content": prompt}]
        agent = Agent(
            role=role,
            task=task,
            conversation=Conversation(policy, self._policies[policy], self._options, messages),
            parent=parent,
            parent_turn=None if parent is None else parent.conversation.turns - 1,
            depth=0 if parent is None else parent.depth + 1,
        )
        self.agents.append(agent)
        if parent is not None:
            parent.children.append(agent)
        return agent

    def refusal(self, parent: Agent) -> str | None:
        """Returns why the agent may start no further one, None if it may."""
        options = self._options
        if parent.conversation.turns >= options.max_turns:
            return "no turn is left in which you could use the results"
        if parent.depth >= options.max_depth:
            return "sub-agents at this depth may not start others"
        if len(parent.children) >= options.max_children:
            return f"at most {options.max_children} sub-agents may be started in a turn"
        if len(self.agents) >= options.max_agents:
            return "no further sub-agent may be started in this task"
        return None

    async def run(self, handle: Callable[[Agent, Turn], None]) -> None:
        """Runs rounds until every agent has ended. Raises: RolloutFailed.

        handle: executes the text of an agent: starts agents, sends the agent a message, or finishes it. An agent with
        none of these cannot continue and is ended with `malformed`.
        """
        while ready := [agent for agent in self.agents if agent.is_ready]:
            turns = await at_once(self._answer(agent) for agent in ready)
            for agent, turn in zip(ready, turns, strict=True):
                handle(agent, turn)
                limit = agent.conversation.ending(agent.malformed)
                if agent.ending is None and not agent.children and limit is not None:
                    agent.finish(turn.text, limit)
            for agent in reversed(self.agents):  # children first: one that ends here may end its parent's wait
                if agent.children and all(child.ending is not None for child in agent.children):
                    self._report(agent)

    def trajectories(self) -> tuple[Trajectory, ...]:
        """Returns a trajectory of each agent, in the order in which they were started."""
        indices = {id(agent): index for index, agent in enumerate(self.agents)}
        return tuple(
            agent.conversation.builder.build(
                agent.score,
                role=agent.role,
                parent=None if agent.parent is None else indices[id(agent.parent)],
                parent_turn=agent.parent_turn,
                metrics={"depth": float(agent.depth), "turns": float(agent.conversation.turns)},
                labels={"task": shortened(agent.task, 200)},
                ending=agent.ending,
            )
            for agent in self.agents
        )

    async def _answer(self, agent: Agent) -> Turn:
        async with self._slots:
            return await agent.conversation.answer()

    def _report(self, agent: Agent) -> None:
        """Tells an agent the results of the agents that it started, and ends it if it has no turn left."""
        text = reports_text(agent.children, agent.refusals)
        agent.children, agent.refusals = [], []
        limit = agent.conversation.ending(agent.malformed)
        if limit is None:
            agent.tell(text)
        else:
            agent.finish("", limit)


def reports_text(children: Sequence[Agent], refusals: Sequence[str]) -> str:
    """Returns what an agent reads about the agents that it started."""
    reports = [
        f"[sub-agent {number}] {child.message or f'ended without a message ({_reason(child)})'}"
        for number, child in enumerate(children, start=1)
    ]
    return "\n\n".join([*reports, *(f"[not started] {refusal}" for refusal in refusals)])


def _reason(agent: Agent) -> str:
    return agent.ending.value if agent.ending else "running"
