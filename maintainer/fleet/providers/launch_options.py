"""Resolves a launch request against a provider's options: type, region and pool options."""

from collections.abc import Collection, Mapping
from typing import TypeVar

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config import Config, suggest_name
from maintainer.fleet.providers.base import Invalid, LaunchSpec

T = TypeVar("T")
C = TypeVar("C", bound=Config)


def type_name(types: Mapping[str, object], spec: LaunchSpec) -> str:
    """Returns the spec's type, by default the first."""
    return spec.type or next(iter(types))


def chosen_type(types: Mapping[str, T], spec: LaunchSpec) -> T:
    """Returns the settings of the spec's type. Raises: Invalid."""
    name = type_name(types, spec)
    if name not in types:
        raise Invalid(
            f"cannot launch: no type is named {name!r}; {suggest_name(name, [*types])}", code="provider.unknown_type"
        )
    return types[name]


def check_region(regions: Collection[str], spec: LaunchSpec) -> None:
    """Checks the spec's region. Raises: Invalid for a region that is not configured."""
    if spec.region and spec.region not in regions:
        suggestion = suggest_name(spec.region, [*regions]) if regions else "none is configured"
        raise Invalid(
            f"cannot launch: no region is named {spec.region!r}; {suggestion}", code="provider.unknown_region"
        )


def pool_options(kind: type[C], spec: LaunchSpec) -> C:
    """Parses the pool's provider-specific options. Raises: Invalid."""
    try:
        return kind.parse(spec.options, where="options of the pool")
    except InvalidInput as problem:
        raise Invalid(str(problem), code="provider.invalid_pool_options") from None
