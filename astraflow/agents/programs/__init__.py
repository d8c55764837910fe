"""Registry of agent programs: what the workflow `agent` starts for each episode."""

from astraflow.agents.programs.base import Program
from astraflow.runtime.plugins import Registry

programs: Registry[Program] = Registry(
    "program",
    built_in={
        "callable": "astraflow.agents.programs.callables",
        "command": "astraflow.agents.programs.commands",
        "container": "astraflow.agents.programs.containers",
        "endpoint": "astraflow.agents.programs.endpoints",
        "verifiers": "astraflow.agents.programs.foreign",
    },
    extra="agents",
)
