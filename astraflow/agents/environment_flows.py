"""Flows that name their environment: the dataset and the workflow that it gives."""

from collections.abc import Mapping
from typing import Any

from astraflow.agents.programs import programs
from astraflow.contract.errors import InvalidInput
from astraflow.datasets import datasets
from astraflow.environments import environments
from astraflow.environments.foreign.tasks import TASK
from astraflow.runtime.config.base import suggest_name

ENVIRONMENT = "environment"
_PLUGINS = {"harbor": "terminal", "openenv": "openenv", "verifiers": "verifiers"}
"""Plugin of the tasks and of the episodes by the name of an environment of another project."""
KINDS = tuple(_PLUGINS)
"""Environments of other projects."""


def with_environment(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a flow with the dataset and workflow of its `environment`.

    Options of `dataset` and `workflow` in the flow are added to them; one with a `kind` replaces them. Raises:
    InvalidInput for an unknown kind.
    """
    spec = values[ENVIRONMENT]
    if not isinstance(spec, Mapping):
        return dict(values)  # the check of its type refuses it
    kind = str(spec.get("kind"))
    known = {*KINDS, *environments.kinds()}
    if kind not in known:
        raise InvalidInput(
            f"cannot use the environment {kind!r}: unknown kind; {suggest_name(kind, sorted(known))}",
            code="environment.unknown_package",
        )
    kind = _PLUGINS.get(kind, kind)
    dataset: dict[str, Any] = {}
    runner = {key: value for key, value in spec.items() if key != "kind"}
    if kind in datasets.built_in_kinds():
        dataset = {"kind": kind, **_options(runner, datasets.options(kind).model_fields)}
        only = dataset.keys() - _runner(kind).options(kind).model_fields.keys()
        runner = {key: value for key, value in runner.items() if key not in only}
    workflow = _workflow(kind, {"kind": kind, **runner})
    merged = {"dataset": _merged(dataset, values.get("dataset")), "workflow": _merged(workflow, values.get("workflow"))}
    return {**values, **{name: value for name, value in merged.items() if value}}


def _runner(kind: str) -> Any:
    """Returns the registry of what runs the episodes of a kind."""
    return programs if kind in programs.built_in_kinds() else environments


def _workflow(kind: str, runner: dict[str, Any]) -> dict[str, Any]:
    if _runner(kind) is programs:
        scored = {"score": {"by": "value"}, "failed_exit": "zero"}  # an agent avoids no reward by failing on an answer
        return {"kind": "agent", "program": runner, "fields": [TASK], **scored}
    return {"kind": "act", ENVIRONMENT: runner}


def _options(spec: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key in known}


def _merged(derived: dict[str, Any], own: object) -> dict[str, Any]:
    if not isinstance(own, Mapping):
        return derived
    return dict(own) if "kind" in own else {**derived, **own}
