"""Command lines of the processes of a recipe's run."""

import sys

from astraflow.cli.options import TOKEN
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
        options = [
            "--host",
            self._addresses.host,
            "--port",
            str(self._addresses.weights_port),
            *self._listen_arguments(),
        ]
        return self._role(
            WEIGHTS,
            [*self._directory_arguments(WEIGHTS), *options, *self._weights_key_arguments()],
            stop_wave=SERVICES_STOP_WAVE,
        )

    def dataflow(self, *, ends_run: bool) -> Program:
        """Returns the dataflow service. ends_run: end the run at its stop condition instead of only reporting it."""
        options = [
            "--host",
            self._addresses.host,
            "--port",
            str(self._addresses.dataflow_port),
            *self._listen_arguments(),
        ]
        options += ["--enroll-port", str(self._addresses.enroll_port)]
        identity = ["--run", self._directory.facts.run, "--weights", self._addresses.weights]
        metrics = ["--metrics", self._addresses.metrics]
        stop_setting = ["--set", f"stop.then={'end' if ends_run else 'continue'}"]
        arguments = [
            *self._directory_arguments(DATAFLOW),
            *identity,
            *options,
            *metrics,
            *self._weights_key_arguments(),
            *stop_setting,
        ]
        return self._role(DATAFLOW, arguments, stop_wave=SERVICES_STOP_WAVE)

    def trainers(self) -> dict[str, Program]:
        return {
            policy: self._role(
                "trainer",
                [
                    *("--policy", policy, "--dataflow", self._addresses.dataflow),
                    *self._directory_arguments(trainer_name(policy)),
                    *self._signing_key_arguments(),
                    *self._authority_arguments(),
                ],
                name=trainer_name(policy),
                announces=False,
                may_exit=True,
            )
            for policy in self._recipe.policies
        }

    def nodes(self) -> list[Program]:
        """Returns the RaaS nodes of this machine."""
        return [self._node(f"node-{number}") for number in range(1, self._recipe.nodes.count + 1)]

    def fleet(self) -> Program:
        """Returns the fleet service, which starts the nodes instead and terminates them before it exits."""
        listen = ["--host", self._addresses.host, "--port", str(self._addresses.fleet_port)]
        join = ["--join-address", self._addresses.enroll] if self._addresses.is_tls else []
        arguments = ["serve", "fleet", str(self._directory.fleet_file), "--dataflow", self._addresses.dataflow, *join]
        arguments += [*self._directory_arguments(FLEET), *listen, *self._listen_arguments()]
        return self._program(FLEET, arguments, announces=True, grace_s=FLEET_GRACE_S)

    def maintainer(self) -> Program:
        """Returns the maintainer. The run and its scaling rule continue without it."""
        arguments = [
            "serve",
            "maintainer",
            str(self._directory.maintainer_file),
            "--dataflow",
            self._addresses.dataflow,
        ]
        arguments += [
            "--fleet",
            self._addresses.fleet,
            *self._directory_arguments(MAINTAINER),
            *self._authority_arguments(),
        ]
        return self._program(MAINTAINER, arguments, announces=True, is_essential=False)

    def preparation(self) -> Program | None:
        """Returns the program that prepares models before training; None when no model needs it."""
        if not policies_to_prepare(self._recipe):
            return None
        return self._program(PREPARE, ["prepare", str(self._directory.recipe_file)], may_exit=True)

    def web(self, *, has_fleet: bool) -> Program:
        """Returns the page. It always listens on loopback, because it is not encrypted."""
        listen = ["--port", str(self._addresses.web_port), "--recipe", self._recipe.name]
        arguments = [
            "serve",
            "web",
            "--dataflow",
            self._addresses.dataflow,
            *self._directory_arguments(WEB),
            *listen,
            *self._authority_arguments(),
        ]
        arguments += ["--run-dir", str(self._directory.path)]
        arguments += ["--fleet", self._addresses.fleet] if has_fleet else []
        return self._program(WEB, arguments, announces=True, is_essential=False)

    def _node(self, name: str) -> Program:
        return self._role(
            "node",
            ["--dataflow", self._addresses.dataflow, "--name", name, *self._authority_arguments()],
            name=name,
            announces=False,
            may_exit=True,
        )

    def _role(
        self,
        role: str,
        options: list[str],
        *,
        name: str = "",
        announces: bool = True,
        may_exit: bool = False,
        stop_wave: int = 0,
    ) -> Program:
        return self._program(
            name or role,
            ["serve", role, str(self._directory.recipe_file), *options],
            announces=announces,
            may_exit=may_exit,
            stop_wave=stop_wave,
        )

    def _program(
        self,
        name: str,
        arguments: list[str],
        *,
        announces: bool = False,
        may_exit: bool = False,
        is_essential: bool = True,
        stop_wave: int = 0,
        grace_s: float | None = None,
    ) -> Program:
        return Program(
            name=name,
            argv=(sys.executable, "-m", "astraflow.cli", *arguments),
            log=self._directory.log(name),
            environment={TOKEN: self._directory.token, **ONE_THREAD, **self._tracing_environment()},
            announces=announces,
            may_exit=may_exit,
            is_essential=is_essential,
            stop_wave=stop_wave,
            grace_s=grace_s,
        )

    def _tracing_environment(self) -> dict[str, str]:
        destination = traces_destination(self._recipe, self._directory.path)
        return {TRACES: destination} if destination else {}

    def _listen_arguments(self) -> list[str]:
        """Returns the options of services; the authority also without TLS, for revocations."""
        advertise = (
            ["--advertise", self._addresses.advertised] if self._addresses.advertised != self._addresses.host else []
        )
        return [
            "--authority",
            str(self._directory.authority),
            "--tls" if self._addresses.is_tls else "--no-tls",
            *advertise,
        ]

    def _authority_arguments(self) -> list[str]:
        return ["--authority", str(self._directory.authority)] if self._addresses.is_tls else []

    def _weights_key_arguments(self) -> list[str]:
        """Returns the option with the public key, for roles that verify signatures."""
        key = self._directory.weights_key
        return ["--weights-key", key] if key else []

    def _signing_key_arguments(self) -> list[str]:
        """Returns the option with the signing key, if the run has one."""
        file = self._directory.signing_key_file
        return ["--signing-key", str(file)] if file else []

    def _directory_arguments(self, role: str) -> list[str]:
        return ["--directory", str(self._directory.state_directory(role))]
