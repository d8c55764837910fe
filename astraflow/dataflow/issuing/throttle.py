"""How many groups a stream may have out: the staleness gate."""


def issue_room(
    *,
    version: int,
    lag: int,
    max_staleness: int,
    batch_groups: int,
    fresh_groups: tuple[int, int],
    issued: int,
    dropped: int,
    replayed: int,
) -> int:
    """How many more groups may be issued for a policy; not positive means wait.

    A stream at version v may have at most `(v + max_staleness + 1) * batch_groups` groups issued since version 0, less
    those dropped: whatever is out then fits into the batches up to version `v + max_staleness`, so that nothing is born
    to become too stale, and the trainer is never short of a batch for want of permission.
    Source: the staleness gate of AReaL, arXiv:2505.24298.

    Batches with replayed groups take fewer fresh ones: those made so far took `v * batch_groups - replayed`, and those
    to come take `fresh_groups`: the one that is out or next, and each after it.

    lag: versions that the node is behind; what it begins has as much less time.

    >>> gate = dict(max_staleness=2, batch_groups=32, fresh_groups=(32, 32), replayed=0)
    >>> issue_room(version=0, lag=0, issued=0, dropped=0, **gate)
    96
    >>> issue_room(version=3, lag=0, issued=200, dropped=8, **gate)
    0
    >>> issue_room(version=3, lag=1, issued=200, dropped=8, **gate)
    -32
    >>> half = dict(max_staleness=2, batch_groups=32, fresh_groups=(16, 16))
    >>> issue_room(version=4, lag=0, issued=80, dropped=0, replayed=48, **half)
    48
    """
    next_one, each_after = fresh_groups
    to_come = next_one + (max_staleness - lag) * each_after
    return version * batch_groups - replayed + to_come - (issued - dropped)
