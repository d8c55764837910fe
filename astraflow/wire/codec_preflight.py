"""Codec of the fleet plane's providers and preflight results."""

from astraflow.contract.ids import PoolId
from astraflow.contract.preflight import CheckKind, PreflightCheck, PreflightResult, ProviderFacts
from astraflow.wire.codec_common import matching_fields
from astraflow.wire.codec_fleet import choice
from astraflow.wire.pb import fleet_plane_pb2 as pb

_CHECK = ("is_ok", "message", "remedy")
_PREFLIGHT_RESULT = ("provider", "began_at", "duration_s", "requested_by")
_PROVIDER = ("name", "kind", "has_spot")


def encode_preflight_check(check: PreflightCheck) -> pb.FleetPreflightCheck:
    """Check -> message."""
    return pb.FleetPreflightCheck(kind=check.kind.value, pool=check.pool or "", **matching_fields(check, _CHECK))


def decode_preflight_check(message: pb.FleetPreflightCheck) -> PreflightCheck:
    """Message -> check. Raises: InvalidInput."""
    pool = PoolId(message.pool) if message.pool else None
    return PreflightCheck(kind=choice(CheckKind, message.kind), pool=pool, **matching_fields(message, _CHECK))


def encode_preflight_result(result: PreflightResult) -> pb.FleetPreflightResult:
    """Preflight result -> message."""
    checks = [encode_preflight_check(check) for check in result.checks]
    return pb.FleetPreflightResult(checks=checks, **matching_fields(result, _PREFLIGHT_RESULT))


def decode_preflight_result(message: pb.FleetPreflightResult) -> PreflightResult:
    """Message -> preflight result. Raises: InvalidInput."""
    checks = tuple(decode_preflight_check(check) for check in message.checks)
    return PreflightResult(checks=checks, **matching_fields(message, _PREFLIGHT_RESULT))


def encode_provider(provider: ProviderFacts) -> pb.FleetProvider:
    """Provider -> message."""
    return pb.FleetProvider(
        pools=provider.pools,
        simulated=provider.simulated,
        last_preflight=encode_preflight_result(provider.last_preflight)
        if provider.last_preflight is not None
        else None,
        **matching_fields(provider, _PROVIDER),
    )


def decode_provider(message: pb.FleetProvider) -> ProviderFacts:
    """Message -> provider. Raises: InvalidInput."""
    return ProviderFacts(
        pools=tuple(PoolId(pool) for pool in message.pools),
        simulated=tuple(message.simulated),
        last_preflight=decode_preflight_result(message.last_preflight) if message.HasField("last_preflight") else None,
        **matching_fields(message, _PROVIDER),
    )
