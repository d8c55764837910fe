"""Workflow of a lead agent that divides its task among sub-agents, which work in parallel."""

from typing import Annotated

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.limits import EpisodeBounds
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Ending, Trajectory
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.workflows import workflows
from astraflow.workflows.base import PolicyClients, RewardScorer
from astraflow.workflows.components.action_parsers import tagged_texts
from astraflow.workflows.components.agent_tree import MAX_MESSAGE_CHARACTERS, Agent, AgentTree, AgentTreeOptions
from astraflow.workflows.components.answers import question_of
from astraflow.workflows.components.conversation import Turn, shortened
from astraflow.workflows.components.roles import Team

LEAD, WORKER = "lead", "worker"
SPAWN_INSTRUCTION = (
    "You may give parts of the task to sub-agents, which work at the same time and see only what you write to them: "
    "write one <task>...</task> for each. You then see their results. A message without such a tag is your answer."
)


def parse_tasks(text: str) -> list[str]:
    """Returns the tasks for sub-agents in a turn.

    >>> parse_tasks("<task>2+3</task> and <task>4*5</task>")
    ['2+3', '4*5']
    """
    return [task for task in tagged_texts(text, "task") if task]


class SpawnOptions(AgentTreeOptions):
    """Policies of the roles. Limits: see `AgentTreeOptions`."""

    lead: Annotated[str, SettableBy.AGENT] = "solver"
    """Policy that gets the question and answers it."""
    worker: Annotated[str, SettableBy.AGENT] = "solver"
    """Policy of the sub-agents; may be the lead's."""


@workflows.register("spawn", options=SpawnOptions)
class Spawn(Team):
    """The `lead` answers the question, and may start agents in the role `worker` for parts of it, as may they.

    The last message of the lead is scored, and every agent of the episode gets that reward. A lead that ended at a
    limit has given no answer: its last text is scored as one that was cut off.
    """

    def __init__(self, options: SpawnOptions) -> None:
        super().__init__({LEAD: options.lead, WORKER: options.worker})
        self._options = options

    @property
    def bounds(self) -> EpisodeBounds:
        return self._options.conversation_bounds(conversations=self._options.max_agents)

    async def run(self, task: Task, policies: PolicyClients, scorer: RewardScorer) -> tuple[Trajectory, ...]:
        """Runs the lead and its sub-agents, and scores the lead's answer."""
        question = question_of(task.prompt)
        tree = AgentTree(self._options, policies)
        lead = tree.start(LEAD, self.roles[LEAD], self._prompt(question, depth=0), question)
        last_turns: dict[int, Turn] = {}

        def handle(agent: Agent, turn: Turn) -> None:
            last_turns[id(agent)] = turn
            self._handle(tree, agent, turn)

        await tree.run(handle)
        turn = last_turns[id(lead)]
        finish = turn.finish if lead.ending is Ending.DONE else Finish.LENGTH
        tokens = lead.conversation.builder.model_tokens
        score = await scorer.score(task.prompt, turn.text, finish, tokens=tokens)
        for agent in tree.agents:
            agent.score = score if agent is lead else score.value
        return tree.trajectories()

    def _prompt(self, task: str, *, depth: int) -> str:
        return f"{task}\n\n{SPAWN_INSTRUCTION}" if depth < self._options.max_depth else task

    def _handle(self, tree: AgentTree, agent: Agent, turn: Turn) -> None:
        """Starts the sub-agents that a turn asks for; a turn that asks for none is the agent's answer."""
        tasks = parse_tasks(turn.text)
        if not tasks or turn.finish is Finish.LENGTH:
            agent.finish(turn.text, Ending.DONE)
            return
        for number, text in enumerate(tasks, start=1):
            refusal = tree.refusal(agent)
            if refusal is None:
                refusal = self._start(tree, agent, shortened(text, MAX_MESSAGE_CHARACTERS))
            if refusal is not None:
                agent.refusals.append(f"task {number} and those after it: {refusal}")
                break
        if not agent.children:
            agent.malformed += 1
            text, agent.refusals = "\n".join(agent.refusals), []
            agent.tell(f"[not started] {text}")

    def _start(self, tree: AgentTree, parent: Agent, task: str) -> str | None:
        """Starts a sub-agent; returns the reason when its task is too long."""
        try:
            tree.start(WORKER, self.roles[WORKER], self._prompt(task, depth=parent.depth + 1), task, parent=parent)
        except InvalidInput as problem:
            if problem.code != "workflow.prompt_too_long":
                raise
            return "it is too long"
        return None
