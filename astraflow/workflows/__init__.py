"""Registry of workflows, which turn a task into the trajectories of one episode."""

from astraflow.runtime.plugins import Registry
from astraflow.workflows.base import Workflow

workflows: Registry[Workflow] = Registry(
    "workflow",
    built_in={
        "act": "astraflow.workflows.act",
        "dataset_answers": "astraflow.workflows.dataset_answers",
        "multi_turn": "astraflow.workflows.multi_turn",
        "single_turn": "astraflow.workflows.single_turn",
        "solve_and_verify": "astraflow.workflows.solve_and_verify",
        "tool_use": "astraflow.workflows.tool_use",
    },
)
