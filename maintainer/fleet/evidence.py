"""What the guard was told, as JSON: its verdict can be asked for again at any time, and has to be the same.

Only what the guard looks at is kept: no options, texts or handles of anything.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

from astraflow.contract.advice import Mode
from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet import Actor, Finding, Instance, InstanceState, KillScope, LaunchId, PoolSpec, Role
from astraflow.contract.ids import PoolId
from astraflow.contract.maintenance import MaintainerMode
from maintainer.fleet.consent import Application, of_applier
from maintainer.fleet.guard import Limits, Proposal, Rejection, Situation, judge

_SPEC = ("provider", "min_nodes", "max_nodes", "usd_per_hour_max", "usd_per_day_max")
_SITUATION = (
    *("now", "target", "rule_target", "report_age_s", "cool_down_s", "hold_until", "breaker_until"),
    *("usd_per_hour", "usd_today", "fleet_usd_per_hour", "fleet_usd_today"),
)
_PROPOSAL = ("target", "launches", "usd_per_hour_change", "is_kill", "is_named")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The guard's complete inputs."""

    situation: Situation
    proposal: Proposal
    limits: Limits
    application: Application | None = None
    """Who applies it; None while it is a plan only."""

    def findings(self) -> tuple[Finding, ...]:
        """What the guard of today says."""
        found = judge(self.situation, self.proposal, self.limits)
        if self.application is None:
            return found
        return found + of_applier(self.proposal.actor, self.application, pool=self.situation.spec.id)

    def to_json(self) -> str:
        """As it travels and is kept."""
        situation, proposal = self.situation, self.proposal
        spec = situation.spec
        return json.dumps(
            {
                "spec": {"id": spec.id, "mode": spec.mode.value, **{name: getattr(spec, name) for name in _SPEC}},
                "instances": {one.id: one.state.value for one in situation.instances},
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
                "rejected": [asdict(one) for one in situation.rejected],
                "application": _application_json(self.application),
            },
            separators=(",", ":"),
        )

    @classmethod
    def parse(cls, text: str) -> "Evidence":
        """What `to_json` made; what a guard of old was not told is not there. Raises: InvalidInput."""
        try:
            said = json.loads(text)
            asked = said["proposal"]
            pool = PoolId(said["spec"]["id"])
            return cls(
                situation=Situation(
                    spec=PoolSpec(**said["spec"] | {"id": pool, "mode": Mode(said["spec"]["mode"])}),
                    instances=_instances(said["instances"], pool),
                    changed_at=tuple(said["changed_at"]),
                    kill=KillScope(said["kill"]),
                    rejected=tuple(_rejection(one) for one in said.get("rejected", ())),
                    unmanaged=said.get("unmanaged", 0),
                    **{name: said[name] for name in _SITUATION},
                ),
                proposal=Proposal(
                    actor=Actor(name=asked["actor"], role=Role(asked["role"])),
                    victims=_instances(asked["victims"], pool),
                    **{name: asked[name] for name in _PROPOSAL},
                ),
                limits=Limits(**said["limits"]),
                application=_application(said.get("application")),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            raise InvalidInput(f"this is not what the guard was told: {problem!r}") from None


def _rejection(said: dict[str, Any]) -> Rejection:
    return Rejection(**said | {"retire": tuple(LaunchId(launch) for launch in said["retire"])})


def _application_json(application: Application | None) -> dict[str, Any] | None:
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


def _application(said: dict[str, Any] | None) -> Application | None:
    if said is None:
        return None
    return Application(
        applier=Actor(name=said["applier"], role=Role(said["role"]), pool=said["pool"]),
        mode=MaintainerMode(said["mode"]) if said["mode"] is not None else None,
        is_proposed=said["is_proposed"],
    )


def _instances(states: dict[str, Any], pool: PoolId) -> tuple[Instance, ...]:
    """As far as the guard looks at them."""
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
