"""Installs the environments of clients and runs their tests without a network: `make agent-clients`."""

import os
import sys

from astraflow.sandbox.isolation import find_bubblewrap
from tests.agents.clients.environments import install_missing

if __name__ == "__main__":
    install_missing()
    # A namespace of its own has only the loopback interface: a client that needs anything but the proxy fails.
    isolation = (find_bubblewrap(), "--dev-bind", "/", "/", "--unshare-net", "--die-with-parent", "--")
    command = (*isolation, sys.executable, "-m", "pytest", "-m", "clients", *(sys.argv[1:] or ["tests/agents/clients"]))
    os.execv(command[0], command)  # noqa: S606
