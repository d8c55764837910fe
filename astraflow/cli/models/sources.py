"""Models that commands take: those of a run, of a checkpoint, a model folder, or a fetched model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.cli.run_directory import folder_of
from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config.toml import read_json
from astraflow.runtime.folders.run_folders import RUN, RunFolder, runs_folder, trainer_name


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSource:
    """Checkpoints that a user named, with the run they belong to."""

    folder: Path
    """Folder of a trainer's checkpoints, or one of them; as the user named it when it belongs to no run here."""
    policy: str = ""
    """Empty, as `run` is None, for a folder of checkpoints."""
    run: RunFolder | None = None

    def workflow_options(self) -> Mapping[str, Any]:
        """Returns the options of the run's first workflow that asks this policy; empty when there is none. Raises:
        InvalidInput for a damaged recipe."""
        if self.run is None:
            return {}
        file = self.run.recipe_file
        recipe = read_json(file)
        try:
            workflows = [flow["workflow"] for flow in recipe["flows"].values()]
            return next((workflow for workflow in workflows if workflow.get("policy") == self.policy), {})
        except (KeyError, TypeError, AttributeError) as problem:
            raise InvalidInput(
                f"cannot read {str(file)!r}: it is no recipe of a run; restore it from a copy",
                code="export.damaged_recipe",
            ) from problem


def find_checkpoints(source: str, policy: str = "") -> CheckpointSource:
    """Returns the checkpoints of a run, given by its folder or its name below ASTRAFLOW_HOME, or those in a folder.

    policy: needed for a run with several. Raises: InvalidInput, with the policies that there are.
    """
    folder = folder_of(source)
    if not folder.exists():
        raise InvalidInput(
            f"cannot find the model {source!r}: it is no folder, and no run below {str(runs_folder())!r}; name a run, "
            "a folder of checkpoints, or a folder with a model",
            code="export.unknown_source",
        )
    if not (folder / RUN).is_file():
        return CheckpointSource(folder=folder)
    policy = _policy(folder, policy)
    return CheckpointSource(folder=RunFolder(folder).checkpoints(policy), policy=policy, run=RunFolder(folder))


def _policy(run: Path, policy: str) -> str:
    """Returns `policy`, or the only policy that the run trains. Raises: InvalidInput."""
    prefix = trainer_name("")
    policies = sorted(path.name.removeprefix(prefix) for path in run.glob(f"{prefix}*") if path.is_dir())
    if policy not in policies and (policy or len(policies) != 1):
        cause = f"it has no trainer of {policy!r}" if policy else f"it has {len(policies)} trainers"
        raise InvalidInput(
            f"cannot choose the policy of {str(run)!r}: {cause}; name one with --policy: "
            f"{', '.join(policies) or 'none'}",
            code="export.unknown_policy",
        )
    return policy or policies[0]
