"""Forks of runs: new runs that begin in a kept checkpoint, with or without the state of its optimizer."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from astraflow.cli.run_directory import find_run_folder, new_run_name
from astraflow.client.local_runs import kept_steps
from astraflow.contract.errors import InvalidInput
from astraflow.recipe.config import Recipe, trainer_config
from astraflow.runtime.folders.launch_facts import LaunchFacts
from astraflow.runtime.folders.run_folders import RUN, RunFolder, runs_folder
from astraflow.trainer.checkpoints import finished_checkpoints, fork_checkpoint, read_manifest, same_model, step_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Beginning of a run in a checkpoint of another one."""

    parent: RunFolder
    step: int
    """Step of the checkpoint."""
    checkpoints: Mapping[str, Path]
    """Checkpoint of each policy that the parent trains or serves."""
    keeps_optimizer: bool

    @property
    def facts(self) -> LaunchFacts:
        """Lineage among the facts of a launch."""
        return LaunchFacts(
            parent=self.parent.facts.run, parent_step=self.step, has_fresh_optimizer=not self.keeps_optimizer
        )

    def create(self, recipe: Recipe, folder: Path | None) -> Path:
        """Writes the first checkpoints of a run of the recipe, which then starts in the folder that is returned.

        folder: a new one; None for one below ASTRAFLOW_HOME.
        Raises: InvalidInput for a folder with a run, and for other models than the parent's; CorruptData; OSError.
        """
        path = (folder or runs_folder() / new_run_name(recipe.name)).resolve()
        if (path / RUN).exists():
            raise InvalidInput(
                f"cannot fork into {str(path)!r}: a run is there; give a new folder, or continue that run with "
                f"`astraflow run --resume {path}`",
                code="fork.folder_in_use",
            )
        for policy, checkpoint in self.checkpoints.items():
            _check_model(recipe, policy, checkpoint)
        for policy, checkpoint in self.checkpoints.items():
            target = RunFolder(path).checkpoints(policy)
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not finished_checkpoints(target):
                fork_checkpoint(checkpoint, target, run=path.name, keeps_optimizer=self.keeps_optimizer)
        return path


def find_fork(run: str, recipe: Recipe, *, step: int | None, keeps_optimizer: bool) -> Fork:
    """Returns the fork of a run at a step that all its trained policies have kept; by default at their newest one.

    Raises: InvalidInput for an unknown run and for a step that was not kept, with those that were.
    """
    parent = find_run_folder(run)
    kept = {policy: _kept(parent.checkpoints(policy)) for policy in recipe.policies}
    trained = [policy for policy, setup in recipe.policies.items() if setup.is_trained]
    common = kept_steps(parent, trained)
    chosen = max(common, default=None) if step is None else step
    if chosen is None or chosen not in common:
        known = "; ".join(f"{name} has {', '.join(map(str, sorted(steps))) or 'none'}" for name, steps in kept.items())
        at = "" if chosen is None else f" at step {chosen}"
        raise InvalidInput(
            f"cannot fork {parent.path.name!r}{at}: its policies have kept other checkpoints ({known}); "
            "choose one that they have, and see trainer.keep_every to keep more",
            code="fork.step_not_kept",
        )
    checkpoints = {
        policy: steps[chosen] if policy in trained else steps[max(steps)] for policy, steps in kept.items() if steps
    }
    return Fork(parent=parent, step=chosen, checkpoints=checkpoints, keeps_optimizer=keeps_optimizer)


def _kept(folder: Path) -> dict[int, Path]:
    return {step_of(path): path for path in finished_checkpoints(folder)} if folder.is_dir() else {}


def _check_model(recipe: Recipe, policy: str, checkpoint: Path) -> None:
    identity, config = read_manifest(checkpoint)["identity"], trainer_config(recipe, policy)
    if not same_model(identity["model"], config.model) or identity["backend"] != config.state_kind:
        raise InvalidInput(
            f"cannot fork policy {policy!r}: its checkpoint is of another model or kind of backend than the settings "
            f"(policies.{policy}.model, policies.{policy}.backend.kind); leave these as in the run, or start a new run",
            code="fork.other_model",
        )
