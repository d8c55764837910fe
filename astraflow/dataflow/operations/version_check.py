"""Checks that versions in pushed results can exist in this run."""

from collections.abc import Collection, Iterable, Mapping

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import MAX_VERSION, NodeId, PolicyId, TaskId, Version
from astraflow.dataflow.operations.evaluator import Evaluator
from astraflow.dataflow.run import Run


class VersionCheck:
    """Rejects results that no policy of the run, or for an evaluation another version, can have written."""

    def __init__(self, run: Run, evaluator: Evaluator) -> None:
        self._run = run
        self._evaluator = evaluator

    def is_possible(self, policies: Iterable[PolicyId], newest: int) -> bool:
        """Returns whether each of these policies can have written tokens with every version up to `newest`."""
        return all(policy in self._run.streams and newest <= self._newest_of(policy) for policy in policies)

    def possible(self, versions: Mapping[PolicyId, Version]) -> Mapping[PolicyId, Version]:
        """Returns the versions that a node reports to serve, at most the newest that nodes may have: tasks issued for a
        version that no trainer has made would be too old for every other node."""
        newest = {policy: self._newest_of(policy) for policy in versions if policy in self._run.streams}
        if all(versions[policy] <= limit for policy, limit in newest.items()):
            return versions
        return {policy: Version(min(version, newest.get(policy, version))) for policy, version in versions.items()}

    def check(self, task: TaskId, policy: PolicyId, versions: Collection[int], *, pushed_by: NodeId) -> None:
        """Checks the versions with which a policy is reported to have written part of a task. Raises: InvalidInput."""
        self._evaluator.check_versions(task, policy, versions)
        stream = self._run.streams.get(policy)
        if stream is None:
            policy_names = ", ".join(self._run.streams)
            problem = InvalidInput(
                f"cannot accept episode {task!r}: this run has no policy {policy!r}; use one of {policy_names}",
                code="episode.unknown_policy",
            )
            raise self._recorded(problem, pushed_by)
        if any(version > self._newest_of(policy) for version in versions):
            problem = InvalidInput(
                f"cannot accept episode {task!r}: no trainer has made the version of {policy!r} that wrote it (the "
                f"trainer is at {stream.version}); fetch the weights again",
                code="episode.unknown_version",
            )
            raise self._recorded(problem, pushed_by)

    def _newest_of(self, policy: PolicyId) -> int:
        """Returns the newest version that nodes may have: a version is served before the step that made it is
        reported, but at most one such version."""
        return self._run.streams[policy].version + 1 if policy in self._run.trainers else MAX_VERSION // 2

    def _recorded(self, problem: InvalidInput, node: NodeId) -> InvalidInput:
        self._run.events.add("push_refused", node, str(problem))
        return problem
