"""Environment of child processes that run code or texts of others: no token or key of the parent reaches them."""

import os
from collections.abc import Iterable

_KEPT = (
    "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SSL_CERT_DIR", "SSL_CERT_FILE",
    "TMPDIR", "TZ", "USER",
)  # fmt: skip
"""Variables that programs need on any host, and that hold no secret."""
PYTHON_VARIABLES = (
    "ASTRAFLOW_HOME", "ASTRAFLOW_PLUGINS", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "PYTHONPATH", "PYTHONUTF8",
    "PYTHONWARNINGS", "VIRTUAL_ENV",
)  # fmt: skip
"""Variables of programs that import AstraFlow or the user's modules in this interpreter."""


def child_environment(names: Iterable[str] = (), /, **added: str) -> dict[str, str]:
    """Returns the environment of a child process: what programs need on any host, the named variables of this process
    as far as they are set, and the added ones.

    >>> sorted(child_environment(OMP_NUM_THREADS="1").keys() - set(_KEPT))
    ['OMP_NUM_THREADS']
    """
    return {name: os.environ[name] for name in (*_KEPT, *names) if name in os.environ} | added
