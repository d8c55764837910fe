"""System call filter of kernels whose Landlock does not limit signals, which the other tests do not reach."""

import json
import subprocess
import sys

import pytest

from astraflow.sandbox.inside import filters

PROGRAM = """
import json, os, signal, socket, subprocess, threading
from astraflow.sandbox.inside import filters, kernel
kernel.renounce_privileges()
kernel.install_filter(filters.filter_program(socket_families=(1,), has_namespaces=False, own_pid=os.getpid()))
def refused(attempt):
    try:
        attempt()
    except PermissionError:
        return True
    return False
thread = threading.Thread(target=int)
thread.start()
thread.join()
print(json.dumps({
    "signal to another process": refused(lambda: os.kill(os.getppid(), 0)),
    "signal to everything": refused(lambda: os.kill(-1, 0)),
    "network": refused(lambda: socket.socket()),
    "session": refused(os.setsid),
    "own signal": refused(lambda: os.kill(os.getpid(), 0)),
    "unix socket": refused(lambda: socket.socket(socket.AF_UNIX).close()),
    "child": refused(lambda: subprocess.run(["true"], check=True)),
}))
"""


@pytest.mark.long
def test_signals_reach_only_the_process_itself() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True, timeout=60)
    refused = json.loads(ended.stdout)
    assert {name for name, is_refused in refused.items() if is_refused} == {
        "signal to another process", "signal to everything", "network", "session",
    }  # fmt: skip


def test_a_filter_without_namespaces_refuses_more() -> None:
    sizes = [len(filters.filter_program(socket_families=(), has_namespaces=value)) for value in (True, False)]
    assert sizes[0] % 8 == 0
    assert sizes[0] < sizes[1]
