"""Registry of workflows, which turn a task into the trajectories of one episode."""

from astraflow.runtime.plugins import Registry
from astraflow.workflows.base import Workflow

workflows: Registry[Workflow] = Registry(
    "workflow",
    built_in={
        "dataset_answers": "astraflow.workflows.dataset_answers",
        "single_turn": "astraflow.workflows.single_turn",
        "solve_and_verify": "astraflow.workflows.solve_and_verify",
    },
)
