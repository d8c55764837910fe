"""Fleet plane: providers, and what came of asking them."""

from astraflow.contract.ids import PoolId
from astraflow.contract.rehearsals import Check, CheckKind, ProviderFacts, Rehearsal
from astraflow.wire.codec_common import taken
from astraflow.wire.codec_fleet import choice
from astraflow.wire.pb import fleet_plane_pb2 as pb

_CHECK = ("is_ok", "message", "to_do")
_REHEARSAL = ("provider", "began_at", "took_s", "by")
_PROVIDER = ("name", "kind", "has_spot")


def encode_check(check: Check) -> pb.FleetCheck:
    """Check -> message."""
    return pb.FleetCheck(kind=check.kind.value, pool=check.pool or "", **taken(check, _CHECK))


def decode_check(message: pb.FleetCheck) -> Check:
    """Message -> check. Raises: InvalidInput."""
    pool = PoolId(message.pool) if message.pool else None
    return Check(kind=choice(CheckKind, message.kind), pool=pool, **taken(message, _CHECK))


def encode_rehearsal(rehearsal: Rehearsal) -> pb.FleetRehearsal:
    """Rehearsal -> message."""
    checks = [encode_check(check) for check in rehearsal.checks]
    return pb.FleetRehearsal(checks=checks, **taken(rehearsal, _REHEARSAL))


def decode_rehearsal(message: pb.FleetRehearsal) -> Rehearsal:
    """Message -> rehearsal. Raises: InvalidInput."""
    checks = tuple(decode_check(check) for check in message.checks)
    return Rehearsal(checks=checks, **taken(message, _REHEARSAL))


def encode_provider(provider: ProviderFacts) -> pb.FleetProvider:
    """Provider -> message."""
    return pb.FleetProvider(
        pools=provider.pools,
        simulated=provider.simulated,
        last=encode_rehearsal(provider.last) if provider.last is not None else None,
        **taken(provider, _PROVIDER),
    )


def decode_provider(message: pb.FleetProvider) -> ProviderFacts:
    """Message -> provider. Raises: InvalidInput."""
    return ProviderFacts(
        pools=tuple(PoolId(pool) for pool in message.pools),
        simulated=tuple(message.simulated),
        last=decode_rehearsal(message.last) if message.HasField("last") else None,
        **taken(message, _PROVIDER),
    )
