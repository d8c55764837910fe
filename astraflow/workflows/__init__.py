"""Registry of workflows, which turn a task into the trajectories of one episode."""

from astraflow.runtime.plugins import Registry
from astraflow.workflows.base import Workflow

workflows: Registry[Workflow] = Registry(
    "workflow",
    built_in={
        "dataset_answers": "astraflow.workflows.dataset_answers",
        "plan_and_solve": "astraflow.workflows.plan_and_solve",
        "route": "astraflow.workflows.route",
        "recursive": "astraflow.workflows.recursive",
        "single_turn": "astraflow.workflows.single_turn",
        "solve_and_select": "astraflow.workflows.solve_and_select",
        "solve_and_test": "astraflow.workflows.solve_and_test",
        "solve_and_verify": "astraflow.workflows.solve_and_verify",
        "spawn": "astraflow.workflows.spawn",
        "versus": "astraflow.workflows.versus",
    },
)
