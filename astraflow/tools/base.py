"""Interface of tools that a policy calls."""

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.values import Json

TOOL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
"""Names that all call formats can write."""
PARAMETER_NAME = re.compile(r"[\w$@.:/\[\]-]{1,64}")
"""Names of parameters: one word, so that a chat template that writes them between tags or quotes shows nothing else."""


class ToolError(AstraFlowError):
    """A tool cannot do what the call asks: the policy sees the message and may try again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that a policy calls by name."""

    name: str
    description: str
    parameters: Mapping[str, Json]
    """JSON schema of the arguments, an object."""
    call: Callable[[Mapping[str, Json]], Awaitable[str]]
    """Takes arguments that match the schema, returns text for the policy.

    Raises: ToolError for a failure that the policy sees; RolloutFailed at the boundary `environment` when the service
    behind the tool does not work.
    """
    timeout_s: float = 30.0
    """Timeout of a call. The policy sees it as an error of the tool."""


class ToolSource(Protocol):
    """Provides tools for episodes. Built by `tool_sources.build(spec)` once for each flow on every node; a
    `ManagedPlugin` when it owns processes or connections.

    A plugin is a class in a module that registers itself; list the module under the entry point group
    `astraflow.tools`.
    """

    def open(self, prompt: Prompt, seed: int) -> AbstractAsyncContextManager[tuple[Tool, ...]]:
        """Opens the tools of one episode, which may share state, such as a shell; closes them at its end.

        The results of the calls are a deterministic function of prompt, seed and calls, because a task that another
        node handed back is replayed with the recorded answers of the policy.
        """
