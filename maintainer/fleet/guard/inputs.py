"""The guard's inputs as JSON, so that its verdict can be reproduced at any time.

The JSON contains only values that the guard reads: no options, texts or handles.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.instances import Instance, InstanceState, LaunchId
from astraflow.contract.fleet.maintainer import MaintainerMode
from astraflow.contract.fleet.plans import Actor, Role, Violation
from astraflow.contract.fleet.pools import KillScope, PoolSpec
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.ids import PoolId
from maintainer.fleet.guard.approval import ApplyAttempt, violations_for_applier
from maintainer.fleet.guard.guard import ProposedChange, Rejection, Situation, judge
from maintainer.fleet.guard.rules import Limits

_SPEC = ("provider", "min_nodes", "max_nodes", "usd_per_hour_max", "usd_per_day_max")
_SITUATION = (
    *("now", "target", "rule_target", "report_age_s", "cool_down_s", "hold_until_at", "breaker_until"),
    *("usd_per_hour", "usd_today", "fleet_usd_per_hour", "fleet_usd_today"),
)
_PROPOSAL = ("target", "launches", "usd_per_hour_change", "is_kill", "is_named")


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardInputs:
    """The guard's complete inputs."""

    situation: Situation
    proposal: ProposedChange
    limits: Limits
    application: ApplyAttempt | None = None
    """Attempt to apply the plan; None while the plan is only created."""

    def violations(self) -> tuple[Violation, ...]:
        """Returns the violations of the current guard."""
        violations = judge(self.situation, self.proposal, self.limits)
        if self.application is None:
            return violations
        return violations + violations_for_applier(self.proposal.actor, self.application, pool=self.situation.spec.id)

    def to_json(self) -> str:
        """Returns the inputs as JSON, for storage and transfer."""
        situation, proposal = self.situation, self.proposal
        spec = situation.spec
        return json.dumps(
            {
                "spec": {"id": spec.id, "mode": spec.mode.value, **{name: getattr(spec, name) for name in _SPEC}},
                "instances": {item.id: item.state.value for item in situation.instances},
                "changed_at": situation.changed_at,
                "kill": situation.kill.value,
                "unmanaged": situation.unmanaged,
                **{name: getattr(situation, name) for name in _SITUATION},
                "proposal": {
                    "actor": proposal.actor.name,
                    "role": proposal.actor.role.value,
                    "victims": {victim.id: victim.state.value for victim in proposal.victims},
                    **{name: getattr(proposal, name) for name in _PROPOSAL},
                },
                "limits": asdict(self.limits),
                "rejected": [asdict(item) for item in situation.rejected],
                "application": _application_json(self.application),
            },
            separators=(",", ":"),
        )

    @classmethod
    def parse(cls, text: str) -> "GuardInputs":
        """Parses the output of `to_json`; inputs missing in older versions get defaults. Raises: InvalidInput."""
        try:
            fields = json.loads(text)
            proposal_fields = fields["proposal"]
            pool = PoolId(fields["spec"]["id"])
            return cls(
                situation=Situation(
                    spec=PoolSpec(**fields["spec"] | {"id": pool, "mode": Mode(fields["spec"]["mode"])}),
                    instances=_instances(fields["instances"], pool),
                    changed_at=tuple(fields["changed_at"]),
                    kill=KillScope(fields["kill"]),
                    rejected=tuple(_rejection(rejection) for rejection in fields.get("rejected", ())),
                    unmanaged=fields.get("unmanaged", 0),
                    **{name: fields[name] for name in _SITUATION},
                ),
                proposal=ProposedChange(
                    actor=Actor(name=proposal_fields["actor"], role=Role(proposal_fields["role"])),
                    victims=_instances(proposal_fields["victims"], pool),
                    **{name: proposal_fields[name] for name in _PROPOSAL},
                ),
                limits=Limits(**fields["limits"]),
                application=_application(fields.get("application")),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            raise InvalidInput(
                f"cannot read the guard's inputs: {problem!r}; pass the unchanged guard_json of a plan or decision",
                code="fleet.invalid_guard_inputs",
            ) from None


def _rejection(fields: dict[str, Any]) -> Rejection:
    launches = {name: tuple(LaunchId(launch) for launch in fields.get(name, ())) for name in ("retire", "victims")}
    return Rejection(**fields | launches)


def _application_json(application: ApplyAttempt | None) -> dict[str, Any] | None:
    if application is None:
        return None
    applier, mode = application.applier, application.mode
    return {
        "applier": applier.name,
        "role": applier.role.value,
        "pool": applier.pool,
        "mode": mode.value if mode is not None else None,
        "is_proposed": application.is_proposed,
    }


def _application(fields: dict[str, Any] | None) -> ApplyAttempt | None:
    if fields is None:
        return None
    return ApplyAttempt(
        applier=Actor(name=fields["applier"], role=Role(fields["role"]), pool=fields["pool"]),
        mode=MaintainerMode(fields["mode"]) if fields["mode"] is not None else None,
        is_proposed=fields["is_proposed"],
    )


def _instances(states: dict[str, Any], pool: PoolId) -> tuple[Instance, ...]:
    """Returns instances with the fields that the guard reads."""
    return tuple(
        Instance(
            id=LaunchId(launch),
            pool=pool,
            state=InstanceState(state),
            provider="",
            actor="",
            reason="",
            intended_at=0.0,
            expires_at=0.0,
        )
        for launch, state in states.items()
    )
