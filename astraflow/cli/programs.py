"""The processes that a recipe's run is made of, as command lines."""

import sys

from astraflow.cli.child import Program
from astraflow.cli.exporting import traces_to
from astraflow.cli.options import TOKEN
from astraflow.cli.places import Places
from astraflow.cli.preparation import unprepared
from astraflow.cli.rundir import RunDirectory
from astraflow.recipe import Recipe
from astraflow.runtime.tracing import TRACES

WEIGHTS, DATAFLOW, WEB, PREPARE, FLEET, MAINTAINER = "weights", "dataflow", "web", "prepare", "fleet", "maintainer"
"""Names of the processes there is one of."""

SERVICES_LAST = 1
"""Stop wave of what the others say goodbye to."""

FLEET_GRACE_S = 15.0
"""Its nodes hand back what they have and leave first."""

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Several torch processes with several threads each on few cores wait for each other's threads most of the time."""


def trainer_name(policy: str) -> str:
    """Name of the process that trains a policy."""
    return f"trainer-{policy}"


class Programs:
    """Command lines of one run. Every role is `astraflow serve ROLE` on the recipe's snapshot in the run directory."""

    def __init__(self, recipe: Recipe, directory: RunDirectory, places: Places) -> None:
        self._recipe = recipe
        self._directory = directory
        self._places = places

    def weights(self) -> Program:
        """The weight store."""
        options = ["--host", self._places.host, "--port", str(self._places.weights_port), *self._listening()]
        return self._role(WEIGHTS, [*self._state(WEIGHTS), *options, *self._weights_key()], stop_wave=SERVICES_LAST)

    def dataflow(self, *, ends: bool) -> Program:
        """The dataflow service. ends: the run ends when its stop condition is met, else it only says so."""
        options = ["--host", self._places.host, "--port", str(self._places.dataflow_port), *self._listening()]
        options += ["--enroll-port", str(self._places.enroll_port)]
        naming = ["--run", self._directory.facts.run, "--weights", self._places.weights]
        metrics = ["--metrics", self._places.metrics]
        then = ["--set", f"stop.then={'end' if ends else 'continue'}"]
        arguments = [*self._state(DATAFLOW), *naming, *options, *metrics, *self._weights_key(), *then]
        return self._role(DATAFLOW, arguments, stop_wave=SERVICES_LAST)

    def trainers(self) -> list[Program]:
        """One for each policy."""
        return [
            self._role(
                "trainer",
                [
                    *("--policy", policy, "--dataflow", self._places.dataflow),
                    *self._state(trainer_name(policy)),
                    *self._signing_key(),
                    *self._dialling(),
                ],
                name=trainer_name(policy),
                announces=False,
                may_leave=True,
            )
            for policy in self._recipe.policies
        ]

    def nodes(self) -> list[Program]:
        """The RaaS nodes of this machine."""
        return [self._node(f"node-{number}") for number in range(1, self._recipe.nodes.count + 1)]

    def fleet(self) -> Program:
        """The fleet service, which starts the nodes instead. It ends them before it ends itself."""
        listen = ["--host", self._places.host, "--port", str(self._places.fleet_port)]
        join = ["--join-address", self._places.enroll] if self._places.is_tls else []
        arguments = ["serve", "fleet", str(self._directory.fleet_file), "--dataflow", self._places.dataflow, *join]
        arguments += [*self._state(FLEET), *listen, *self._listening()]
        return self._program(FLEET, arguments, announces=True, grace_s=FLEET_GRACE_S)

    def maintainer(self) -> Program:
        """Looks after the pool. The run does without it, and its rule carries on."""
        arguments = ["serve", "maintainer", str(self._directory.maintainer_file), "--dataflow", self._places.dataflow]
        arguments += ["--fleet", self._places.fleet, *self._state(MAINTAINER), *self._dialling()]
        return self._program(MAINTAINER, arguments, announces=True, is_essential=False)

    def preparation(self) -> Program | None:
        """Makes the models that need making before they can be trained; None when none does."""
        if not unprepared(self._recipe):
            return None
        return self._program(PREPARE, ["prepare", str(self._directory.recipe_file)], may_leave=True)

    def web(self, *, has_fleet: bool) -> Program:
        """The page. It listens on loopback wherever the others do: it travels unencrypted."""
        listen = ["--port", str(self._places.web_port), "--recipe", self._recipe.name]
        arguments = ["serve", "web", "--dataflow", self._places.dataflow, *self._state(WEB), *listen, *self._dialling()]
        arguments += ["--run-dir", str(self._directory.path)]
        arguments += ["--fleet", self._places.fleet] if has_fleet else []
        return self._program(WEB, arguments, announces=True, is_essential=False)

    def _node(self, name: str) -> Program:
        return self._role(
            "node",
            ["--dataflow", self._places.dataflow, "--name", name, *self._dialling()],
            name=name,
            announces=False,
            may_leave=True,
        )

    def _role(
        self,
        role: str,
        options: list[str],
        *,
        name: str = "",
        announces: bool = True,
        may_leave: bool = False,
        stop_wave: int = 0,
    ) -> Program:
        return self._program(
            name or role,
            ["serve", role, str(self._directory.recipe_file), *options],
            announces=announces,
            may_leave=may_leave,
            stop_wave=stop_wave,
        )

    def _program(
        self,
        name: str,
        arguments: list[str],
        *,
        announces: bool = False,
        may_leave: bool = False,
        is_essential: bool = True,
        stop_wave: int = 0,
        grace_s: float | None = None,
    ) -> Program:
        return Program(
            name=name,
            argv=(sys.executable, "-m", "astraflow.cli", *arguments),
            log=self._directory.log(name),
            environment={TOKEN: self._directory.token, **ONE_THREAD, **self._tracing()},
            announces=announces,
            may_leave=may_leave,
            is_essential=is_essential,
            stop_wave=stop_wave,
            grace_s=grace_s,
        )

    def _tracing(self) -> dict[str, str]:
        to = traces_to(self._recipe, self._directory.path)
        return {TRACES: to} if to else {}

    def _listening(self) -> list[str]:
        """For services: who is revoked they know without TLS too."""
        known = ["--advertise", self._places.advertised] if self._places.advertised != self._places.host else []
        return ["--authority", str(self._directory.authority), "--tls" if self._places.is_tls else "--no-tls", *known]

    def _dialling(self) -> list[str]:
        return ["--authority", str(self._directory.authority)] if self._places.is_tls else []

    def _weights_key(self) -> list[str]:
        """For whoever checks signatures; public."""
        key = self._directory.weights_key
        return ["--weights-key", key] if key else []

    def _signing_key(self) -> list[str]:
        """For whoever signs: only where it is."""
        file = self._directory.signing_key_file
        return ["--signing-key", str(file)] if file else []

    def _state(self, role: str) -> list[str]:
        return ["--directory", str(self._directory.state(role))]
