"""Workflow of a coder and a tester: the tester writes test cases, and a coder who fails them tries once more."""

from typing import Annotated, Any

from pydantic import Field

from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.limits import EpisodeBounds
from astraflow.contract.rollouts.tasks import Prompt, Task
from astraflow.contract.rollouts.trajectories import Trajectory
from astraflow.datasets.base import ANSWER
from astraflow.rewards.code_blocks import last_python_block
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.sandbox import sandboxes
from astraflow.sandbox.base import JobLimits
from astraflow.sandbox.shared import SharedSandbox
from astraflow.workflows import workflows
from astraflow.workflows.base import PolicyClients, RewardScorer
from astraflow.workflows.components.answers import AnswerOptions, question_of
from astraflow.workflows.components.code_cases import feedback_text, parse_cases, run_cases
from astraflow.workflows.components.problem_examples import without_examples
from astraflow.workflows.components.roles import (
    Team,
    Utterance,
    ask_in_role,
    scored_answer,
    trajectories_of,
)

_PROGRAM_CASES = '[{{"input": "text of standard input", "output": "text of standard output"}}, ...]'
_FUNCTION_CASES = '[{{"input": [first argument, ...], "output": result}}, ...], for the function `{function}`'
_TESTER_TEMPLATE = (
    "You are the tester. Think about inputs with which the coder's solution may fail, and work out the right outputs "
    "from the problem. Then end with exactly {count} test cases as JSON:\n```json\n" + "{form}\n```"
)
_RETRY_TEMPLATE = (
    "You are the coder. Your solution was run on the tester's cases:\n\n{feedback}\n\nWrite the whole solution again."
)


class SolveAndTestOptions(AnswerOptions):
    """Policies of the roles, sandbox and limits."""

    coder: Annotated[str, SettableBy.AGENT] = "solver"
    """Policy that writes the solution."""
    tester: Annotated[str, SettableBy.AGENT] = "tester"
    """Policy that writes the test cases; may be the coder's."""
    sandbox: Annotated[dict[str, Any], SettableBy.RECIPE, sandboxes] = Field(default_factory=lambda: {"kind": "local"})
    """Sandbox spec: `kind` and its options."""
    reference_field: Annotated[str, SettableBy.AGENT] = ANSWER
    """Field of the prompt with a correct solution."""
    problem_field: Annotated[str, SettableBy.AGENT] = "problem"
    """Field of the prompt with the problem, whose examples the tester does not see; the question if there is none."""
    cases: int = Field(default=2, ge=1, le=16)
    """Test cases that the tester writes."""
    cases_max_new_tokens: int = Field(default=2048, ge=1)
    """Length limit of the tester. Tokens."""
    case_cpu_s: float = Field(default=6.0, gt=0)
    """Limit of processor time of a case. Seconds."""
    case_wall_s: float = Field(default=18.0, gt=0)
    """Limit of a case by the clock; longer, so that a busy node fails no correct code. Seconds."""
    correct_threshold: float = 0.5
    """Smallest reward of a correct solution."""
    knows_truth: Annotated[bool, SettableBy.AGENT] = True
    """Retries only where it can teach something: the cases are valid, and the first attempt is wrong. An evaluation
    cannot know that; with false, the coder retries whenever it fails a case."""


@workflows.register("solve_and_test", options=SolveAndTestOptions)
class SolveAndTest(Team):
    """A `coder` solves a problem, a `tester` writes test cases for it, and the coder may try again: `coder.retry`.

    Each attempt has the flow's reward. The tester gets 0.5 * (V + V * agrees): V is 1 when a reference solution passes
    its cases, and agrees is 1 when the first attempt passes them exactly if it is correct. The tester sees the problem
    without its examples, and the attempt. Cases that cannot be read have the reward 0. A prompt without a reference
    solution makes a failed episode, which is masked, not a reward of 0.
    """

    def __init__(self, options: SolveAndTestOptions) -> None:
        super().__init__({"coder": options.coder, "tester": options.tester})
        self._options = options
        self._sandbox = SharedSandbox(options.sandbox)
        self._limits = JobLimits(wall_s=options.case_wall_s, cpu_s=options.case_cpu_s)

    async def start(self) -> None:
        """Starts the sandbox. Raises: SandboxError."""
        await self._sandbox.start()

    async def close(self) -> None:
        await self._sandbox.close()

    @property
    def bounds(self) -> EpisodeBounds:
        return self._options.answer_bounds(trajectories=3)

    async def run(self, task: Task, policies: PolicyClients, scorer: RewardScorer) -> tuple[Trajectory, ...]:
        """Solves, tests, and solves once more where the cases show a mistake."""
        options, reference = self._options, self._reference(task.prompt)
        function = str(task.prompt.fields.get("function") or "")
        first = await scored_answer(self.role("coder", policies, options), task, scorer)
        is_correct = first.reward >= options.correct_threshold
        tests = await self._tests(task.prompt, first, function, policies)
        cases = parse_cases(tests.text, count=options.cases, function=function) or ()
        results = await run_cases(self._sandbox, last_python_block(first.text, function=function), cases, self._limits)
        reference_results = await run_cases(self._sandbox, reference, cases, self._limits)
        passes = all(result.passes for result in results)
        is_valid = bool(cases) and all(result.passes for result in reference_results)
        tests.score = 0.5 * (is_valid + (is_valid and passes == is_correct))
        tests.metrics = {"readable": float(bool(cases)), "valid": float(is_valid), "passes": float(passes)}
        may_retry = not options.knows_truth or (is_valid and not is_correct)
        if not cases or passes or not may_retry:
            return trajectories_of((first, tests))
        instruction = _RETRY_TEMPLATE.format(feedback=feedback_text(cases, results))
        coder = self.role("coder.retry", policies, options, instruction=instruction)
        second = await scored_answer(coder, task, scorer, (first,), parent=tests)
        return trajectories_of((first, tests, second))

    async def _tests(self, prompt: Prompt, attempt: Utterance, function: str, policies: PolicyClients) -> Utterance:
        options = self._options
        problem = prompt.fields.get(options.problem_field)
        form = _FUNCTION_CASES if function else _PROGRAM_CASES
        tester = self.reviewer(
            "tester",
            policies,
            options,
            _TESTER_TEMPLATE.format(count=options.cases, form=form.format(function=function)),
            max_new_tokens=options.cases_max_new_tokens,
        )
        statement = without_examples(problem if isinstance(problem, str) and problem else question_of(prompt))
        return await ask_in_role(tester, statement, (attempt,))

    def _reference(self, prompt: Prompt) -> str:
        reference = prompt.fields.get(self._options.reference_field)
        if isinstance(reference, str) and reference.strip():
            return last_python_block(reference) or reference
        raise RolloutFailed(
            f"cannot judge test cases for prompt {str(prompt.id)!r}: its field {self._options.reference_field!r} has "
            "no reference solution; use a dataset with solutions, or leave out such prompts",
            boundary=Boundary.WORKFLOW,
            code="rollout.no_reference",
        )
