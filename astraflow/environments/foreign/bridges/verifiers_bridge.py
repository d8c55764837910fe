"""Environments of the package `verifiers`: a taskset, an agent with its harness, and rewards.

Its own interception server forwards the agent's calls to the session of the episode. An episode that verifiers could
not run or score is a failure and has no reward.
"""

import contextlib
import itertools
import os
import random
from typing import Any

import serving
import verifiers.v1 as vf
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

_KEY = "ASTRAFLOW_EPISODE_KEY"
"""Variable with the key of the agent's calls. The secret of an episode is in its address, so the key is no secret."""
_OF_ENVIRONMENT = frozenset(
    {"EnvError", "InterceptionError", "SandboxError", "TaskError", "ToolsetError", "TunnelError"}
)
"""Errors that are neither of the agent nor of the model's endpoint."""


class Verifiers:
    """One environment, and the episodes in it."""

    def __init__(self) -> None:
        self._env: Any = None
        self._serving = contextlib.AsyncExitStack()

    async def tasks(self, request: serving.Request) -> list[dict[str, Any]]:
        """Returns the tasks, at most `limit` if it is not 0."""
        taskset = _loaded(request).taskset
        limit = int(request["limit"])
        if not limit and not taskset.bounded:
            raise serving.InvalidInput(
                f"cannot list the tasks of {request['id']!r}: there is no end of them; set `limit`",
                code="environment.endless_tasks",
            )
        return [
            {"question": task.data.prompt_text, "task": task.data.model_dump(mode="json")}
            for task in itertools.islice(taskset, limit or None)
        ]

    async def open(self, request: serving.Request) -> dict[str, Any]:
        """Loads the environment and starts what its episodes share."""
        env = _loaded(request)
        await self._serving.enter_async_context(env.serving())
        self._env = env
        return {}

    async def run(self, request: serving.Request) -> dict[str, Any]:
        """Runs an episode; returns its reward and terms, or the error of its agent."""
        random.seed(request["seed"])
        taskset = self._env.taskset
        kind = type(taskset).task_type()
        task = kind(kind.data_type().model_validate(request["task"]), taskset.config.task)
        client = vf.EvalClientConfig(base_url=request["base_url"], api_key_var=_KEY)
        context = vf.ModelContext(model=request["model"], client=client, sampling=vf.SamplingConfig())
        (slot,) = self._env.slots(task)
        return _result(await self._env.run_slot(slot, context))


def _loaded(request: serving.Request) -> Any:
    """Returns the environment that a request names."""
    agent = {"runtime": {"type": "subprocess"}, **request["agent"]}
    try:
        config = resolve_env_config({"taskset": {**request["args"], "id": request["id"]}, "agent": agent})
        env = load_environment(config)
    except (AttributeError, ImportError, TypeError, ValueError) as problem:
        raise serving.InvalidInput(
            f"cannot load the environment {request['id']!r}: {problem}; correct its id and options, or install its "
            "package: astraflow environments install verifiers --package NAME",
            code="environment.not_loadable",
        ) from problem
    seats = list(config.agent_harnesses())
    if seats != ["agent"]:
        raise serving.InvalidInput(
            f"cannot use the environment {request['id']!r}: it has the agents {', '.join(seats)}; choose one with a "
            "single agent",
            code="environment.several_agents",
        )
    harness = env._harnesses["agent"]  # the public surface names no loaded harness
    if harness.EXECUTES_CODE and config.agent.runtime.type == "subprocess":
        raise serving.InvalidInput(
            f"cannot use the harness {harness.config.id!r} of {request['id']!r}: the policy would run commands on this "
            "machine; set `agent.runtime` to docker or podman, or choose a harness without commands",
            code="environment.unisolated_commands",
        )
    return env


def _result(episode: Any) -> dict[str, Any]:
    errors = [*episode.errors, *(error for trace in episode.traces if not trace.ok for error in trace.errors)]
    if errors:
        error = errors[-1]
        if error.type in _OF_ENVIRONMENT:
            raise serving.RolloutFailed(f"{error.type}: {error.message}", code="environment.episode_failed")
        return {"error": f"{error.type}: {error.message}"}
    rewards = {name: reward for trace in episode.traces for name, reward in trace.rewards.items()}
    if not rewards or None in rewards.values():
        raise serving.RolloutFailed("the environment gave no reward", code="environment.no_reward")
    metrics = {name: value for trace in episode.traces for name, value in trace.metrics.items() if value is not None}
    terms = {**metrics, **{name: reward.value for name, reward in rewards.items()}}
    return {"reward": sum(trace.reward for trace in episode.traces), "terms": terms}


if __name__ == "__main__":
    os.environ[_KEY] = "unused"
    bridge = Verifiers()
    serving.serve({"tasks": bridge.tasks, "open": bridge.open, "run": bridge.run})
