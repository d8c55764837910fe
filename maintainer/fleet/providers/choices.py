"""What a spec chooses of what a provider's options offer: a type, a region, what its pool says beside."""

from collections.abc import Collection, Mapping
from typing import TypeVar

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config import Config, nearest
from maintainer.fleet.providers.base import Invalid, LaunchSpec

T = TypeVar("T")
C = TypeVar("C", bound=Config)


def type_name(types: Mapping[str, object], spec: LaunchSpec) -> str:
    """The spec's type, or the first."""
    return spec.type or next(iter(types))


def chosen_type(types: Mapping[str, T], spec: LaunchSpec) -> T:
    """What stands under the spec's type. Raises: Invalid."""
    name = type_name(types, spec)
    if name not in types:
        raise Invalid(f"no type of machine is called {name!r}; {nearest(name, [*types])}")
    return types[name]


def check_region(regions: Collection[str], spec: LaunchSpec) -> None:
    """Raises: Invalid for a region that is not configured."""
    if spec.region and spec.region not in regions:
        known = nearest(spec.region, [*regions]) if regions else "none is configured"
        raise Invalid(f"no region is called {spec.region!r}; {known}")


def pool_options(kind: type[C], spec: LaunchSpec) -> C:
    """What only this provider knows of the pool. Raises: Invalid."""
    try:
        return kind.parse(spec.options, where="options of the pool")
    except InvalidInput as problem:
        raise Invalid(str(problem)) from None
