"""Checks of a recipe: names, roles, plugins and how they fit together."""

from collections.abc import Sequence

from astraflow.algorithms.checks import (
    GROUP_ADVANTAGES,
    check_algorithm,
    check_roles,
    check_temperatures,
    teacher_tokens,
)
from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.token_columns import MAX_SUPPORT
from astraflow.dataflow.config import DataflowConfig
from astraflow.dataflow.evaluation.scores import figures
from astraflow.recipe.config import Recipe, Spec, dataflow_values, trainer_config, trainer_values
from astraflow.recipe.plugins import plugin_specs
from astraflow.rewards import judging_policies
from astraflow.runtime.config.base import Config, ValueOrigin, suggest_name
from astraflow.runtime.config.toml import Values
from astraflow.trainer.config import TrainerConfig
from astraflow.workflows import workflows
from astraflow.workflows.components.answers import AnswerOptions
from astraflow.workflows.components.conversation import ConversationOptions
from astraflow.workflows.components.roles import RoleWorkflow
from astraflow.workflows.dataset_answers import DatasetAnswers

_ONE_TRAJECTORY = ("act", "multi_turn", "single_turn", "tool_use")
"""Workflows whose episodes are one trajectory, besides conversations of a user's own workflow."""


def check_names(recipe: Recipe, origin: ValueOrigin) -> None:
    """Checks that no evaluation has the name of a flow, since task ids begin with this name, and no policy the name
    under which the base of another policy's adapters is published."""
    for name in recipe.policies.keys() & {f"{policy}.base" for policy in recipe.policies}:
        where = f"{origin(('policies', name))}: policies.{name}"
        raise InvalidInput(
            f"{where}: is reserved for the base of the adapters of {name.removesuffix('.base')!r}; choose another name",
            code="recipe.reserved_policy",
        )
    for name in recipe.evaluations.keys() & recipe.flows.keys():
        where = f"{origin(('evaluations', name))}: evaluations.{name}"
        raise InvalidInput(f"{where}: a flow has this name; choose another", code="recipe.duplicate_name")


def check_roles_of(recipe: Recipe, origin: ValueOrigin) -> None:
    """Checks the tables that are passed to a role against its configuration."""
    _check_role("dataflow", recipe.dataflow, DataflowConfig, dataflow_values(recipe), origin)
    for policy in recipe.policies:
        _check_role("trainer", recipe.trainer, TrainerConfig, trainer_values(recipe, policy), origin)
        _check_keep_best(recipe, policy, origin)


def _check_keep_best(recipe: Recipe, policy: str, origin: ValueOrigin) -> None:
    """Checks that the evaluation that chooses the best checkpoints exists and has the score."""
    best = trainer_config(recipe, policy).keep_best
    if best is None:
        return
    where = f"{origin(('trainer', 'keep_best'))}: trainer.keep_best"
    evaluation = recipe.evaluations.get(best.evaluation)
    if evaluation is None:
        hint = suggest_name(best.evaluation, list(recipe.evaluations))
        raise InvalidInput(
            f"{where}.evaluation: the recipe has no evaluation {best.evaluation!r}; {hint}",
            code="recipe.unknown_evaluation",
        )
    names = figures(evaluation.samples)
    if best.score and best.score.rpartition(".")[2] not in names:  # a role may stand before the name
        raise InvalidInput(
            f"{where}.score: the evaluation {best.evaluation!r} has no score {best.score!r}, so that no checkpoint "
            f"would stay; {suggest_name(best.score, list(names))}",
            code="recipe.unknown_score",
        )


def _check_role(table: str, declared: Values, config: type[Config], derived: Values, origin: ValueOrigin) -> None:
    for key in declared.keys() & derived.keys():
        where = f"{origin((table, key))}: {table}.{key}"
        raise InvalidInput(
            f"{where}: is derived from the rest of the recipe; leave it out", code="recipe.derived_setting"
        )
    config.parse({**derived, **declared}, where=table, origin=lambda path: origin((table, *path)))


def check_plugins(recipe: Recipe, origin: ValueOrigin, *, with_heavy: bool) -> None:
    problems = []
    for path, registry, spec in plugin_specs(recipe):
        if registry.is_heavy(str(spec.get("kind"))) and not with_heavy:
            continue
        try:
            registry.check(spec, where=".".join(path), origin=_below(path, origin))
        except InvalidInput as problem:
            problems.append(problem)
    if problems:
        raise InvalidInput("\n".join(dict.fromkeys(map(str, problems))), code=problems[0].code)
    for name, flow in recipe.flows.items():
        path = ("flows", name, "workflow")
        _check_policies(workflows.build(flow.workflow).policies, recipe, path, origin)
        _check_trained(recipe, path, origin)
        _check_sampling(workflows.check(flow.workflow), path, origin)
        _check_answers(recipe, name, origin)
        _check_group_of_one(recipe, name, origin)
    for name, evaluation in recipe.evaluations.items():
        path = ("evaluations", name, "workflow")
        _check_policies(workflows.build(evaluation.workflow).policies, recipe, path, origin)
        _check_trained(recipe, path, origin)
    _check_judges(recipe, origin)
    _check_algorithms(recipe, origin, with_heavy=with_heavy)


def _below(path: tuple[str, ...], origin: ValueOrigin) -> ValueOrigin:
    return lambda below: origin((*path, *below))


def _check_algorithms(recipe: Recipe, origin: ValueOrigin, *, with_heavy: bool) -> None:
    """Checks each algorithm against the flows of its policy: temperature, roles and teachers. with_heavy: also checks
    that its parts fit together, which trainers do when they start."""
    for name, policy in recipe.policies.items():
        path, algorithm = ("policies", name, "algorithm"), policy.algorithm
        try:
            check_temperatures(algorithm, _temperatures(recipe, name))
            for flow, roles in _roles_in_flows(recipe, name).items():
                check_roles(algorithm, flow, roles)
            _check_teachers(recipe, name, top=teacher_tokens(algorithm) if with_heavy else 0)
            if with_heavy:
                check_algorithm(algorithm)
        except InvalidInput as problem:
            raise InvalidInput(f"{origin(path)}: {'.'.join(path)}: {problem}", code=problem.code) from None


def _roles_in_flows(recipe: Recipe, policy: str) -> dict[str, list[str]]:
    """Returns the roles that the policy plays in each flow whose workflow names roles."""
    built = {name: workflows.build(flow.workflow) for name, flow in recipe.flows.items()}
    return {
        name: [role for role, player in workflow.roles.items() if player == policy]
        for name, workflow in built.items()
        if isinstance(workflow, RoleWorkflow)
    }


def _temperatures(recipe: Recipe, policy: str) -> dict[str, float]:
    """Returns the sampling temperature of each flow that trains the policy."""
    options = {
        name: workflows.check(flow.workflow)
        for name, flow in recipe.flows.items()
        if policy in workflows.build(flow.workflow).policies
    }
    return {
        name: workflow_options.temperature
        for name, workflow_options in options.items()
        if isinstance(workflow_options, AnswerOptions)
    }


def _check_teachers(recipe: Recipe, policy: str, *, top: int) -> None:
    """Checks that teachers score the distribution that flows sample, and that a policy which teaches itself gets
    another prompt from each. top: the teacher's most likely tokens that the loss reads."""
    teachers = recipe.policies[policy].algorithm.teachers.values()
    is_whole = any(teacher.endpoint is not None for teacher in teachers) or top > 0
    teaches_itself = any(teacher.policy is not None for teacher in teachers)
    for name, flow in recipe.flows.items():
        options = workflows.check(flow.workflow)
        if policy not in workflows.build(flow.workflow).policies:
            continue
        filters = options.truncating_options if isinstance(options, AnswerOptions) else ()
        if is_whole and filters:
            raise InvalidInput(
                f"cannot compare a teacher with the filtered samples of flow {name!r}: servers, and losses with "
                f"teacher_coefficient, compare whole distributions; leave out {', '.join(filters)}, or load the model "
                "of the teacher and use the token advantage 'distillation'",
                code="algorithm.teacher_filtered",
            )
        if teaches_itself and not getattr(options, "teacher_question", ""):
            raise InvalidInput(
                f"cannot use {policy!r} as its own teacher in flow {name!r}: the workflow gives it no other prompt; "
                "set teacher_question of a single_turn workflow, or use another teacher",
                code="algorithm.no_teacher_question",
            )


def _check_sampling(options: Config, path: tuple[str, ...], origin: ValueOrigin) -> None:
    """Checks that engines can record the distribution that a training flow samples from."""
    if not isinstance(options, AnswerOptions) or options.allow_truncated_sampling:
        return
    if options.top_k > MAX_SUPPORT:
        raise InvalidInput(
            f"{origin((*path, 'top_k'))}: {'.'.join(path)}: cannot train on samples of the {options.top_k} most likely "
            f"tokens: the trainer needs the kept sets, and engines record at most {MAX_SUPPORT} tokens of each; lower "
            "top_k, leave it to evaluations, or set allow_truncated_sampling = true",
            code="recipe.truncated_sampling",
        )


def _check_answers(recipe: Recipe, name: str, origin: ValueOrigin) -> None:
    """Checks that a flow which trains on the answers of its dataset has their number and a loss without logprobs."""
    flow, path = recipe.flows[name], ("flows", name)
    workflow = workflows.build(flow.workflow)
    if not isinstance(workflow, DatasetAnswers):
        return
    if flow.group_size != workflow.group_size:
        raise InvalidInput(
            f"{origin((*path, 'group_size'))}: flows.{name}.group_size: cannot make groups of {flow.group_size}: each "
            f"prompt has {workflow.group_size} answers; set group_size = {workflow.group_size}",
            code="recipe.answers_per_prompt",
        )
    needed = "dpo" if workflow.group_size > 1 else "sft"
    (policy,) = workflow.policies
    loss = recipe.policies[policy].algorithm.loss.get("kind")
    if loss != needed:
        raise InvalidInput(
            f"{origin((*path, 'workflow'))}: flows.{name}.workflow: cannot train {policy!r} on these answers with the "
            f"loss {loss!r}: no engine sampled them, and there is {'a' if workflow.group_size > 1 else 'no'} rejected "
            f"one; set loss = {{ kind = '{needed}' }} of the policy's algorithm",
            code="recipe.answers_and_loss",
        )


def _check_group_of_one(recipe: Recipe, name: str, origin: ValueOrigin) -> None:
    """Checks that a flow compares trajectories: the only one of a group equals the group's mean, so that its advantage
    is 0 and nothing is learned."""
    flow, path = recipe.flows[name], ("flows", name, "group_size")
    if flow.group_size > 1 or not _has_one_trajectory(flow.workflow):
        return
    (policy,) = workflows.build(flow.workflow).policies
    algorithm = recipe.policies[policy].algorithm
    compared = [str(spec["kind"]) for spec in algorithm.advantages if spec.get("kind") in GROUP_ADVANTAGES]
    if compared and not algorithm.token_advantages and algorithm.loss.get("kind") != "sft":
        raise InvalidInput(
            f"{origin(path)}: {'.'.join(path)}: cannot learn from groups of one trajectory: {compared[0]!r} compares "
            f"the rewards of a group, so every advantage is 0; set flows.{name}.group_size to 2 or more, or use the "
            f"advantage 'batch_whitened' in policies.{policy}.algorithm",
            code="recipe.groups_of_one",
        )


def _has_one_trajectory(workflow: Spec) -> bool:
    """Returns whether an episode of the workflow is one trajectory of its only policy."""
    built = workflows.build(workflow)
    kind, is_built_in = workflow["kind"], workflow["kind"] in workflows.built_in_kinds()
    is_own_conversation = not is_built_in and isinstance(workflows.check(workflow), ConversationOptions)
    is_single = len(built.policies) == 1 and not isinstance(built, RoleWorkflow)
    return is_single and (kind in _ONE_TRAJECTORY or is_own_conversation)


def check_node_policies(recipe: Recipe, origin: ValueOrigin) -> None:
    """Checks that the tables of the nodes name policies of the recipe."""
    for key, names in (("engines", tuple(recipe.nodes.engines)), ("policies", recipe.nodes.policies)):
        _check_policies(names, recipe, ("nodes", key), origin)


def _check_policies(required: Sequence[str], recipe: Recipe, path: tuple[str, ...], origin: ValueOrigin) -> None:
    for policy in required:
        if policy not in recipe.policies:
            raise InvalidInput(
                f"{origin(path)}: {'.'.join(path)}: unknown policy {policy!r}; "
                f"{suggest_name(policy, list(recipe.policies))}",
                code="recipe.undefined_policy",
            )


def _check_trained(recipe: Recipe, path: tuple[str, ...], origin: ValueOrigin) -> None:
    """Checks that the workflow of a flow or evaluation uses only policies that are trained."""
    workflow = getattr(recipe, path[0])[path[1]].workflow
    for policy in workflows.build(workflow).policies:
        if not recipe.policies[policy].is_trained:
            raise InvalidInput(
                f"{origin(path)}: {'.'.join(path)}: policy {policy!r} is not trained, so it can only judge; use "
                "another policy in the workflow, or leave out is_trained = false",
                code="recipe.untrained_policy",
            )


def _check_judges(recipe: Recipe, origin: ValueOrigin) -> None:
    """Checks that the policies that rewards ask exist, and that each has a flow which trains it or is not trained."""
    trained = {policy for flow in recipe.flows.values() for policy in workflows.build(flow.workflow).policies}
    for table, flows in (("flows", recipe.flows), ("evaluations", recipe.evaluations)):
        for name, flow in flows.items():
            path = (table, name, "reward")
            judges = judging_policies(flow.reward)
            _check_policies(judges, recipe, path, origin)
            for policy in judges:
                if recipe.policies[policy].is_trained and policy not in trained:
                    raise InvalidInput(
                        f"{origin(path)}: {'.'.join(path)}: no flow trains policy {policy!r}, which judges; set "
                        f"policies.{policy}.is_trained = false",
                        code="recipe.judge_without_flow",
                    )
