"""Workflow whose episodes are sessions of an agent program that knows nothing of AstraFlow."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from astraflow.agents.branches import Scores
from astraflow.agents.programs import programs
from astraflow.agents.programs.base import AgentTask, ProgramExit, RunningProgram
from astraflow.agents.proxy.server import AgentProxy, SessionAccess
from astraflow.agents.scoring import Ended, ScoringOptions, score_episode
from astraflow.agents.session_limits import SessionOptions
from astraflow.agents.upstream.session import AgentSession, open_session
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId, TaskId
from astraflow.contract.rollouts.agent_calls import AgentCall, LiveSession
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.limits import EpisodeBounds
from astraflow.contract.rollouts.spans import Ending
from astraflow.contract.rollouts.tasks import Prompt, Task
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.contract.values import Json
from astraflow.datasets.base import QUESTION
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.plugins import start_managed
from astraflow.sandbox.base import Outcome
from astraflow.workflows import workflows
from astraflow.workflows.base import PolicyClients, RewardScorer, episode_seed

REWARD_URL = "ASTRAFLOW_REWARD_URL"
"""Environment variable with the URL that takes the reward of the session, where the score is a callback."""

_UNLIMITED_S = 86400.0
_MAX_ERROR_CHARACTERS = 400

Verdict = Literal["fail", "zero", "score"]
"""Meaning of an unusual end: a failed episode, the reward 0, or a score as after every other end."""


class AgentOptions(SessionOptions):
    """Program, policies, score and limits."""

    program: Annotated[dict[str, Any], SettableBy.RECIPE, programs]
    """Agent: its kind (`callable`, `command`, `container`, `endpoint`) and options."""
    policies: Annotated[tuple[str, ...], SettableBy.AGENT] = Field(default=("solver",), min_length=1)
    """Policies that answer the agent's calls. The first one answers calls for unknown models."""
    models: Annotated[dict[str, str], SettableBy.AGENT] = Field(default_factory=dict)
    """Policy by model name, as the agent's calls have it, in addition to the names of the policies."""
    fields: Annotated[tuple[str, ...], SettableBy.RECIPE] = (QUESTION,)
    """Fields of the prompt that the agent gets. Leave out those with the answer."""
    score: ScoringOptions = ScoringOptions()
    """Source of the score."""
    exit_s: float = Field(default=10.0, gt=0)
    """Time that the program has to exit after `max_seconds`, beyond which its calls are refused. Seconds."""
    failed_exit: Annotated[Verdict, SettableBy.AGENT] = "fail"
    """Meaning of an exit status other than 0, and of a signal."""
    reached_limit: Annotated[Verdict, SettableBy.AGENT] = "zero"
    """Meaning of a program that is stopped after `max_seconds`, or fails after a limit of its session was reached."""

    @field_validator("policies")
    @classmethod
    def _check_policies(cls, policies: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(policies)) < len(policies) or not all(policies):
            raise ValueError("name each policy once")
        return policies


@workflows.register("agent", options=AgentOptions)
class AgentWorkflow:
    """Starts a program for each episode, and answers its model calls with policies of the run.

    The program finds base URLs and keys in its environment, calls models by the API of OpenAI or Anthropic, and ends
    the episode by its exit. Each reply of a policy is trained on exactly the tokens that it read and wrote.
    """

    def __init__(self, options: AgentOptions) -> None:
        self._options = options
        self._policies = tuple(PolicyId(policy) for policy in options.policies)
        self._models = {name: PolicyId(policy) for name, policy in options.models.items()}
        for policy in self._models.values():
            if policy not in self._policies:
                raise InvalidInput(
                    f"cannot answer models with the policy {policy!r}: it is not among the policies "
                    f"{', '.join(self._policies)}; add it",
                    code="agent.unknown_policy",
                )
        self._program = programs.build(options.program)
        options.score.check(self._program.features)
        self._proxy = AgentProxy()
        self._resources = AsyncExitStack()
        self._sessions: dict[AgentSession, Task] = {}
        self._unfinished: dict[TaskId, list[tuple[AgentCall, str]]] = {}
        """Recorded calls of episodes that have not succeeded, as `SessionAccess.record` has them."""

    @property
    def policies(self) -> tuple[PolicyId, ...]:
        """Policies that answer calls."""
        return self._policies

    @property
    def bounds(self) -> EpisodeBounds:
        """Bounds by the options: each trajectory ends with a reply of its own."""
        return EpisodeBounds(trajectories=self._options.max_turns, tokens=self._options.max_context)

    async def start(self) -> None:
        """Starts the proxy and the program. Raises: InvalidInput, Unavailable, SandboxError."""
        await start_managed((self._proxy, self._program), self._resources)

    async def close(self) -> None:
        """Ends all sessions, their programs and the proxy."""
        await self._resources.aclose()

    def live_sessions(self) -> tuple[LiveSession, ...]:
        """Returns the sessions that run now."""
        return tuple(session.usage.live(task.id, task.flow) for session, task in self._sessions.items())

    def take_failed_calls(self, task: TaskId) -> tuple[AgentCall, ...]:
        """Returns the calls of a task's failed or cancelled episode, and forgets them."""
        return tuple(call for call, _ in self._unfinished.pop(task, ()))

    async def run(self, task: Task, policies: PolicyClients, scorer: RewardScorer) -> Sequence[Trajectory]:
        """Runs one program. Raises: InvalidInput; RolloutFailed."""
        session = open_session(
            {policy: policies[policy] for policy in self._policies},
            self._options,
            default=self._policies[0],
            models=self._models,
        )
        takes_reward = self._options.score.by == "callback"
        async with AsyncExitStack() as resources:
            resources.callback(session.end)
            access = await resources.enter_async_context(self._proxy.session(session, takes_reward=takes_reward))
            self._unfinished[task.id] = access.record
            agent_task = self._agent_task(task, session, access)
            program = await resources.enter_async_context(self._program.open(agent_task))
            session.usage.restart_clock()  # it may have waited for its program
            self._sessions[session] = task
            resources.callback(self._sessions.pop, session)
            exit_ = await _ended(program, session, access, self._timeout_s)
            scores = await self._scores(_Episode(task.prompt, session, access, program, exit_), scorer)
        trajectories = session.trajectories(scores, calls=access.record)
        if self._unfinished.get(task.id) is access.record:  # else of another attempt, which runs at the same time
            del self._unfinished[task.id]
        return trajectories

    @property
    def _timeout_s(self) -> float:
        options = self._options
        return options.max_seconds + options.exit_s if options.max_seconds else _UNLIMITED_S

    def _agent_task(self, task: Task, session: AgentSession, access: SessionAccess) -> AgentTask:
        """Returns what the agent gets. Raises: InvalidInput for a prompt without one of the fields."""
        variables = {REWARD_URL: f"{access.url}/reward"} if self._options.score.by == "callback" else {}
        return AgentTask(
            fields=_chosen(task.prompt, self._options.fields),
            base_url=f"{access.url}/v1",
            api_key=access.secret,
            models=tuple(session.models),
            environment={**access.environment, **variables},
            port=self._proxy.port,
            seed=episode_seed(task),
        )

    async def _scores(self, episode: "_Episode", scorer: RewardScorer) -> Scores:
        """Returns the score of a program that has ended. Raises: RolloutFailed."""
        session, exit_ = episode.session, episode.exit
        failure = session.failure or episode.access.failure
        if failure is not None:
            raise failure
        if exit_.outcome is Outcome.TIMEOUT:
            session.usage.ending = session.usage.ending or Ending.BUDGET
        verdict: Verdict = "score"
        if exit_.outcome is not Outcome.PASSED:
            options = self._options
            is_limit = exit_.outcome is Outcome.TIMEOUT or session.usage.refused > 0
            verdict = options.reached_limit if is_limit else options.failed_exit
        if verdict == "fail" or (exit_.outcome is not Outcome.PASSED and not session.usage.turns):
            raise _program_failed(episode)
        last = session.last_reply
        if last is None:
            raise _failure("the program ended without a call of a model", code="agent.no_call")
        if verdict == "zero":
            return 0.0
        text, finish = last
        ended = Ended(
            prompt=episode.prompt,
            program=episode.program,
            exit=exit_,
            reply=text,
            finish=finish,
            tokens=session.usage.tokens,
            posted=episode.access.reward,
            policies=self._policies,
        )
        return await score_episode(self._options.score, ended, scorer)


@dataclass(frozen=True, slots=True)
class _Episode:
    prompt: Prompt
    session: AgentSession
    access: SessionAccess
    program: RunningProgram
    exit: ProgramExit


async def _ended(
    program: RunningProgram, session: AgentSession, access: SessionAccess, timeout_s: float
) -> ProgramExit:
    """Returns the end of the program. Raises: RolloutFailed; that of the engine, if it made the program fail."""
    try:
        return await program.run(timeout_s=timeout_s)
    except RolloutFailed as problem:
        failure = session.failure or access.failure
        if failure is None:
            raise
        raise failure from problem


def _chosen(prompt: Prompt, names: Sequence[str]) -> dict[str, Json]:
    missing = [name for name in names if name not in prompt.fields]
    if missing:
        raise InvalidInput(
            f"cannot give the fields {', '.join(missing)} to the agent: prompt {prompt.id!r} has only "
            f"{', '.join(sorted(prompt.fields))}; change the option `fields` of the workflow",
            code="agent.missing_field",
        )
    return {name: prompt.fields[name] for name in names}


def _program_failed(episode: _Episode) -> RolloutFailed:
    exit_ = episode.exit
    ends = {
        Outcome.TIMEOUT: "it was stopped at its time limit",
        Outcome.MEMORY: "it had too little memory",
        Outcome.CRASHED: "it was ended by a signal",
    }
    end = ends.get(exit_.outcome, f"its exit status is {exit_.exit_status}")
    output = last_words(exit_.stderr.replace(episode.access.secret, "[secret]"))
    return _failure(f"{end}, and it wrote: {output}" if output else end, code="agent.program_failed")


def last_words(text: str) -> str:
    r"""Returns the last lines of an output as one, without those that only mark a place in the line above.

    >>> last_words("Traceback:\n  File 'a.py', line 1\n    1 / 0\n    ~~^~~\nZeroDivisionError\n")
    "Traceback: | File 'a.py', line 1 | 1 / 0 | ZeroDivisionError"
    """
    output = ""
    for line in reversed(text.splitlines()):
        words = line.strip()
        if not words.strip("^~ "):
            continue
        longer = f"{words} | {output}" if output else words[:_MAX_ERROR_CHARACTERS]
        if len(longer) > _MAX_ERROR_CHARACTERS:
            break
        output = longer
    return output


def _failure(cause: str, *, code: str) -> RolloutFailed:
    return RolloutFailed(f"cannot use the agent's episode: {cause}; correct it", boundary=Boundary.WORKFLOW, code=code)
