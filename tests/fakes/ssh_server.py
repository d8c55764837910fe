"""Debian's SSH server as a host of a test: by default on loopback, with its own keys, port and home."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncssh

SSHD = Path("/usr/sbin/sshd")
"""Program of the package openssh-server."""

PATIENCE_S = 30.0

_CONFIG = """
ListenAddress {address}:{port}
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/authorized_keys
SetEnv HOME={directory}/home
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshServer:
    """A running SSH server."""

    address: str
    port: int
    directory: Path
    process: subprocess.Popen[bytes]

    @property
    def home(self) -> Path:
        """Home of the user who logs in."""
        return self.directory / "home"

    def known_host(self) -> str:
        """Line of the server in a known-hosts file."""
        return f"[{self.address}]:{self.port} {(self.directory / 'host_key.pub').read_text()}"


@contextmanager
def serving_ssh(
    directory: Path, *, key: asyncssh.SSHKey, address: str = "127.0.0.1", port: int = 0
) -> Iterator[SshServer]:
    """Serves until the block ends. key: may log in as the user of the test. port: a free one by default."""
    port = port or _free_port(address)
    (directory / "home").mkdir(parents=True)
    host_key = asyncssh.generate_private_key("ssh-ed25519")
    host_key.write_private_key(str(directory / "host_key"))
    (directory / "host_key").chmod(0o600)
    host_key.write_public_key(str(directory / "host_key.pub"))
    key.write_public_key(str(directory / "authorized_keys"))
    (directory / "config").write_text(_CONFIG.format(address=address, port=port, directory=directory))
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # Debian's service creates it at its start
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([str(SSHD), "-D", "-e", "-f", str(directory / "config")], stderr=log)
    try:
        _await(address, port, process, directory / "log")
        yield SshServer(address=address, port=port, directory=directory, process=process)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _free_port(address: str) -> int:
    with socket.socket() as used_socket:
        used_socket.bind((address, 0))
        return int(used_socket.getsockname()[1])


def _await(address: str, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection((address, port), timeout=1.0).close()
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.01)
        else:
            return
