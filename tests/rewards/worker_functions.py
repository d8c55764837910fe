"""Functions that run in the worker processes of tests."""

import os
import time
from typing import Any


def echo(call: Any) -> Any:
    """Returns its argument, after a fault that it names."""
    wanted = call if isinstance(call, dict) else {}
    if wanted.get("raises"):
        raise ValueError("as asked")
    if wanted.get("prints"):
        print('{"result": "printed"}')  # noqa: T201
    if wanted.get("variables"):
        return dict(os.environ)
    if wanted.get("exits"):
        os._exit(3)
    if wanted.get("hangs"):
        while True:
            pass
    if wanted.get("allocates"):
        return len(bytearray(wanted["allocates"]))
    time.sleep(wanted.get("sleeps", 0))
    return call
