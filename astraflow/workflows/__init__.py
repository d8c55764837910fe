"""Registry of workflows, which turn a task into the trajectories of one episode."""

from astraflow.runtime.plugins import Registry, modules
from astraflow.workflows.base import Workflow

workflows: Registry[Workflow] = Registry(
    "workflow",
    built_in=modules(
        __name__,
        "act dataset_answers multi_turn plan_and_solve recursive route single_turn solve_and_select "
        "solve_and_test solve_and_verify spawn tool_use versus",
    )
    | {"agent": "astraflow.agents.workflow"},
    extras={"agent": "agents"},
)
