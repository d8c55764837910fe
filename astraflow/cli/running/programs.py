"""Command lines of the processes of a recipe's run."""

import sys
from collections.abc import Mapping
from typing import Any

from astraflow.cli.options import TOKEN, words
from astraflow.cli.recipes.cards import SIMULATED_KIND
from astraflow.cli.run_directory import RunDirectory
from astraflow.cli.running.service_addresses import ServiceAddresses, traces_destination
from astraflow.cli.running.supervisor import PROGRESS, Program
from astraflow.models import models
from astraflow.models.base import OnProgress, WarmStartProgress
from astraflow.recipe.config import PolicyConfig, Recipe, Spec
from astraflow.runtime.folders.run_folders import trainer_name
from astraflow.runtime.tracing import TRACES
from astraflow.trainer.model_preparation import prepare_model


def policies_to_prepare(recipe: Recipe) -> list[str]:
    """Returns the policies of which a model needs a warm start: their own, or that of a teacher."""
    return [
        name
        for name, policy in recipe.policies.items()
        if any(models.build(spec).examples_source is not None for spec in _specs(policy).values())
    ]


def _specs(policy: PolicyConfig) -> dict[str, Spec]:
    """Returns the specs of a policy's models: its own, with the name "", and those of teachers."""
    return {"": policy.model, **policy.algorithm.teacher_models}


def check_models(recipe: Recipe) -> None:
    """Checks that this machine has the files of all models. Raises: InvalidInput, which names the remedy."""
    for policy in recipe.policies.values():
        for spec in _specs(policy).values():
            models.build(spec).check()


def prepare_models(recipe: Recipe) -> None:
    """Prepares the models and prints progress and folders. Raises: InvalidInput if a model misses its target
    accuracy."""
    for policy_name, policy in recipe.policies.items():
        for teacher, spec in _specs(policy).items():
            if spec.get("kind") == SIMULATED_KIND:
                continue  # it has no weights
            name = f"{policy_name}'s teacher {teacher}" if teacher else policy_name
            folder = prepare_model(spec, on_progress=_print_progress(name))
            print(f"model of {name}: {folder}", flush=True)  # noqa: T201 (the command's result)


def _print_progress(policy: str) -> OnProgress:
    def print_progress(progress: WarmStartProgress) -> None:
        print(  # noqa: T201 (a line for the parent process: see cli.running.supervisor)
            f"{PROGRESS}warm start of {policy}: step {progress.step} of at most {progress.steps}, loss "
            f"{progress.loss:.3f}, {progress.accuracy:.0%} of the answers as in the examples{_goal(progress)}",
            flush=True,
        )

    return print_progress


def _goal(progress: WarmStartProgress) -> str:
    return "" if progress.target_accuracy is None else f" (goal {progress.target_accuracy:.0%})"


WEIGHTS, DATAFLOW, WEB, PREPARE, FLEET, MAINTAINER = "weights", "dataflow", "web", "prepare", "fleet", "maintainer"
"""Names of the processes that exist once per run."""

SERVICES_STOP_WAVE = 1
"""Stop wave of the services, which the other processes call while they stop."""

FLEET_GRACE_S = 15.0
"""Grace period of the fleet service, whose nodes hand back their tasks and leave first."""

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Several torch processes with several threads each on few cores mostly wait for each other."""


class Programs:
    """Command lines of one run. Every role is `astraflow serve ROLE` on the recipe's snapshot in the run directory."""

    def __init__(self, recipe: Recipe, directory: RunDirectory, addresses: ServiceAddresses) -> None:
        self._recipe = recipe
        self._directory = directory
        self._addresses = addresses

    def weights(self) -> Program:
        """Returns the program of the weight store."""
        options = self._listening(WEIGHTS, self._addresses.weights_port) | self._weights_key
        return self._role(WEIGHTS, options, stop_wave=SERVICES_STOP_WAVE)

    def dataflow(self, *, ends_run: bool) -> Program:
        """Returns the dataflow service. ends_run: end the run at its stop condition instead of only reporting it."""
        addresses = self._addresses
        options = self._listening(DATAFLOW, addresses.dataflow_port) | {
            "enroll-port": addresses.enroll_port,
            "run": self._directory.facts.run,
            "weights": addresses.weights,
            "metrics": addresses.metrics,
            "set": f"stop.then={'end' if ends_run else 'continue'}",
        }
        return self._role(DATAFLOW, options | self._weights_key, stop_wave=SERVICES_STOP_WAVE)

    def trainers(self) -> dict[str, Program]:
        programs = {}
        for policy in self._recipe.policies:
            name = trainer_name(policy)
            options = self._client(name) | {"policy": policy, "signing-key": self._directory.signing_key_file}
            programs[policy] = self._role("trainer", options, name=name, announces=False, may_exit=True)
        return programs

    def nodes(self) -> list[Program]:
        """Returns the RaaS nodes of this machine."""
        return [self._node(f"node-{number}") for number in range(1, self._recipe.nodes.count + 1)]

    def fleet(self) -> Program:
        """Returns the fleet service, which starts the nodes instead and terminates them before it exits."""
        options = self._listening(FLEET, self._addresses.fleet_port) | {
            "dataflow": self._addresses.dataflow,
            "join-address": self._addresses.enroll if self._addresses.is_tls else None,
        }
        arguments = ["serve", "fleet", str(self._directory.fleet_file), *words(options)]
        return self._program(FLEET, arguments, announces=True, grace_s=FLEET_GRACE_S)

    def maintainer(self) -> Program:
        """Returns the maintainer. The run and its scaling rule continue without it."""
        options = self._client(MAINTAINER) | {"fleet": self._addresses.fleet}
        arguments = ["serve", "maintainer", str(self._directory.maintainer_file), *words(options)]
        return self._program(MAINTAINER, arguments, announces=True, is_essential=False)

    def preparation(self) -> Program | None:
        """Returns the program that prepares models before training; None when no model needs it."""
        if not policies_to_prepare(self._recipe):
            return None
        arguments = ["prepare", str(self._directory.recipe_file)]
        return self._program(PREPARE, arguments, announces=False, may_exit=True)

    def web(self, *, has_fleet: bool) -> Program:
        """Returns the page. It always listens on loopback, because it is not encrypted."""
        options = self._client(WEB) | {
            "port": self._addresses.web_port,
            "recipe": self._recipe.name,
            "run-dir": self._directory.path,
            "fleet": self._addresses.fleet if has_fleet else None,
        }
        return self._program(WEB, ["serve", "web", *words(options)], announces=True, is_essential=False)

    def _node(self, name: str) -> Program:
        options = {"dataflow": self._addresses.dataflow, "name": name, **self._authority}
        return self._role("node", options, name=name, announces=False, may_exit=True)

    def _role(
        self, role: str, options: Mapping[str, object], *, name: str = "", announces: bool = True, **program: Any
    ) -> Program:
        arguments = ["serve", role, str(self._directory.recipe_file), *words(options)]
        return self._program(name or role, arguments, announces=announces, **program)

    def _program(self, name: str, arguments: list[str], **program: Any) -> Program:
        """program: further fields of `Program`."""
        destination = traces_destination(self._recipe, self._directory.path)
        environment = {TOKEN: self._directory.token, **ONE_THREAD, **({TRACES: destination} if destination else {})}
        argv = (sys.executable, "-m", "astraflow.cli", *arguments)
        return Program(name=name, argv=argv, log=self._directory.log(name), environment=environment, **program)

    def _listening(self, role: str, port: int) -> dict[str, object]:
        """Returns the options of a service; the authority also without TLS, for revocations."""
        addresses = self._addresses
        return {
            "directory": self._directory.state_directory(role),
            "host": addresses.host,
            "port": port,
            "authority": self._directory.authority,
            "tls" if addresses.is_tls else "no-tls": True,
            "advertise": addresses.advertised if addresses.advertised != addresses.host else None,
        }

    def _client(self, role: str) -> dict[str, object]:
        """Returns the options of a client of dataflow."""
        directory = self._directory.state_directory(role)
        return {"dataflow": self._addresses.dataflow, "directory": directory, **self._authority}

    @property
    def _authority(self) -> dict[str, object]:
        return {"authority": self._directory.authority if self._addresses.is_tls else None}

    @property
    def _weights_key(self) -> dict[str, object]:
        """Option with the public key, for roles that verify signatures."""
        return {"weights-key": self._directory.weights_key}
