"""Serves pinned versions with the engines for training, which do not follow newer versions meanwhile."""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.raas.engines.base import Engine
from astraflow.raas.policies.served_policies import ServedPolicies
from astraflow.runtime.logs import get_logger

log = get_logger()

HOLD_IDLE_S = 2.0
"""Time without pinned tasks after which the engines follow the newest versions again: longer than the pause between the
result of the last task and the next tasks."""


class HeldPolicy(Protocol):
    """Interface that keeps a policy at one version; see `astraflow.raas.policies.weight_loop.WeightLoop`."""

    async def hold(self, version: Version) -> None:
        """Serves this version and no other one until `release`; also when another one is held."""

    def release(self) -> None:
        """Follows the newest version again."""

    async def hold_problem(self) -> str:
        """Returns why the held version is not served any more; empty while it is."""


class HeldEngines:
    """Holds the weight loops of the pinned policies at their versions, so that no second engine is needed.

    An engine that serves the pinned version, which is usual when a round starts with the newest version, loads nothing.
    """

    engines: Mapping[PolicyId, Engine] = {}
    """None besides those for training."""

    def __init__(self, policies: ServedPolicies, loops: Mapping[PolicyId, HeldPolicy]) -> None:
        """policies: served for training. loops: keep each of them on the newest version."""
        self._policies = policies
        self._loops = loops
        self._held: dict[PolicyId, Version] = {}
        self._failures: list[str] = []
        self._check_lock = asyncio.Lock()
        self._requested_checks = 0
        self._covered_checks = 0
        """Requests whose tasks had ended when the last check began."""

    def failures(self) -> list[str]:
        """Returns why the pinned versions are no longer served."""
        return self._failures

    async def serve(self, pinned: Mapping[PolicyId, Version]) -> ServedPolicies:
        """Holds the policies at these versions, and releases the others. Raises: UnknownVersion; errors of a load."""
        for policy in self._held.keys() - pinned.keys():
            self._release(policy)
        try:
            for policy, version in pinned.items():
                if self._held.get(policy) != version:
                    self._held.pop(policy, None)  # a failed hold releases the policy itself
                    await self._loops[policy].hold(version)
                    self._held[policy] = version
        except BaseException:
            await self.close()
            raise
        log.info("pinned_versions_held", versions=dict(pinned))
        return ServedPolicies({policy: self._policies[policy] for policy in pinned})

    async def check(self) -> None:
        """Checks that the held versions were served until now. Raises: RolloutFailed.

        Tasks that end during a check share the next one: with a server of another party it scores a whole probe.
        """
        self._requested_checks += 1
        number = self._requested_checks
        async with self._check_lock:
            if self._failures:
                raise _not_held(self._failures[0])
            if number > self._covered_checks:
                covered = self._requested_checks
                await self._check_held()
                self._covered_checks = covered

    async def _check_held(self) -> None:
        for policy in list(self._held):
            if problem := await self._loops[policy].hold_problem():
                self._failures = [problem]
                raise _not_held(problem)

    async def close(self) -> None:
        """Releases all policies."""
        self._failures = []
        for policy in list(self._held):
            self._release(policy)

    def _release(self, policy: PolicyId) -> None:
        log.info("pinned_version_released", policy=policy, version=self._held.pop(policy))
        self._loops[policy].release()


def _not_held(problem: str) -> RolloutFailed:
    return RolloutFailed(problem, boundary=Boundary.ENGINE, code="rollout.version_not_held")
