"""How many groups a stream may have out: the staleness gate."""


def issue_room(*, version: int, max_staleness: int, batch_groups: int, issued: int, dropped: int) -> int:
    """How many more groups may be issued for a policy; not positive means wait.

    A stream at version v may have at most `(v + max_staleness + 1) * batch_groups` groups issued since version 0, less
    those dropped: whatever is out then fits into the batches up to version `v + max_staleness`, so that nothing is born
    to become too stale, and the trainer is never short of a batch for want of permission.
    Source: the staleness gate of AReaL, arXiv:2505.24298.

    >>> issue_room(version=0, max_staleness=0, batch_groups=32, issued=0, dropped=0)
    32
    >>> issue_room(version=3, max_staleness=2, batch_groups=32, issued=200, dropped=8)
    0
    """
    return (version + max_staleness + 1) * batch_groups - (issued - dropped)
