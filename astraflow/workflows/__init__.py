"""Registry of workflows, which turn a task into the trajectories of one episode."""

from astraflow.runtime.plugins import Registry
from astraflow.workflows.base import Workflow

workflows: Registry[Workflow] = Registry(
    "workflow",
    built_in={
        "act": "astraflow.workflows.act",
        "agent": "astraflow.agents.workflow",
        "dataset_answers": "astraflow.workflows.dataset_answers",
        "multi_turn": "astraflow.workflows.multi_turn",
        "plan_and_solve": "astraflow.workflows.plan_and_solve",
        "recursive": "astraflow.workflows.recursive",
        "route": "astraflow.workflows.route",
        "single_turn": "astraflow.workflows.single_turn",
        "solve_and_select": "astraflow.workflows.solve_and_select",
        "solve_and_test": "astraflow.workflows.solve_and_test",
        "solve_and_verify": "astraflow.workflows.solve_and_verify",
        "spawn": "astraflow.workflows.spawn",
        "tool_use": "astraflow.workflows.tool_use",
        "versus": "astraflow.workflows.versus",
    },
    extras={"agent": "agents"},
)
