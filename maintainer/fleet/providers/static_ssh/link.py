"""Connection to a host over SSH, and calls of the program `remote_host` there.

The command line is constant: a Python program that reads the request from its standard input. A request is never part
of the command line, so that no quoting is needed and the host's process list shows nothing of it.
"""

import asyncio
import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

import asyncssh

from maintainer.fleet.providers.base import AuthError, InvalidError, ProviderError, RetryError, UnknownError
from maintainer.fleet.providers.local_process import machine, machine_folders
from maintainer.fleet.providers.static_ssh import remote_host

BOOTSTRAP = """
import json, os, pathlib, sys, tempfile
call = json.load(sys.stdin)
base = pathlib.Path(call["directory"]).expanduser()
base.mkdir(parents=True, exist_ok=True, mode=0o700)
if base.stat().st_uid != os.getuid() or base.stat().st_mode & 0o022:
    sys.exit(f"{base} must belong to this user and must not be writable by others")
place = base / (".program-" + call["digest"])
if not place.exists():
    draft = pathlib.Path(tempfile.mkdtemp(prefix=".", dir=base))
    for name, text in call["modules"].items():
        path = draft / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    try:
        draft.rename(place)
    except OSError:
        if not place.exists():
            raise
sys.path.insert(0, str(place))
from maintainer.fleet.providers.static_ssh import remote_host
print(remote_host.main(str(base), call["request"]))
"""
"""Program on the host: installs the modules once, and passes the request to them."""

_MODULES = {
    f"{module.__name__.replace('.', '/')}.py": Path(module.__file__ or "").read_text(encoding="utf-8")
    for module in (machine, machine_folders, remote_host)
}
_DIGEST = hashlib.blake2b(json.dumps(_MODULES, sort_keys=True).encode(), digest_size=8).hexdigest()

_SESSIONS = 5
"""Concurrent calls per connection: servers allow ten (`MaxSessions`), including sessions that are closing."""

_BROKEN = (asyncssh.ConnectionLost, asyncssh.ChannelOpenError, ConnectionError)

_KEEPALIVE_S = 15.0


class SshLink:
    """SSH connection to a host, whose key must be in the known hosts.

    known_hosts: file in OpenSSH's format. directory: on the host, for the folders of machines. python: Python of the
    host.
    """

    def __init__(
        self,
        *,
        name: str,
        address: str,
        port: int,
        user: str,
        key_files: tuple[Path, ...],
        known_hosts: Path,
        directory: str,
        python: str,
        timeout_s: float,
    ) -> None:
        self.name = name
        self._where = f"host {name} ({user + '@' if user else ''}{address}:{port})"
        self._options: dict[str, Any] = {
            "host": address,
            "port": port,
            "known_hosts": str(known_hosts),
            "config": None,
            "password_auth": False,
            "kbdint_auth": False,
            "keepalive_interval": _KEEPALIVE_S,
            "connect_timeout": timeout_s,
            "login_timeout": timeout_s,
        }
        if user:
            self._options["username"] = user
        if key_files:
            self._options |= {"client_keys": [str(path) for path in key_files], "agent_path": None}
        self._directory = directory
        self._command = shlex.join([python, "-I", "-S", "-c", BOOTSTRAP])
        self._timeout_s = timeout_s
        self._connection: asyncssh.SSHClientConnection | None = None
        self._connect_lock = asyncio.Lock()
        self._sessions = asyncio.Semaphore(_SESSIONS)

    async def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Sends a request; returns the answer. Raises: ProviderError; after RetryError it may have succeeded."""
        call = {
            "directory": self._directory,
            "digest": _DIGEST,
            "modules": _MODULES,
            "request": {"do": do, **request},
        }
        text = json.dumps(call)
        try:
            try:
                process = await self._run(text)
            except _BROKEN:  # an idle connection may have been closed; requests are idempotent
                process = await self._run(text)
        except (OSError, asyncssh.Error) as problem:
            raise self._provider_error(problem) from problem
        return self._answer(do, process)

    async def _run(self, call: str) -> asyncssh.SSHCompletedProcess:
        connection = None
        try:
            async with self._sessions, asyncio.timeout(self._timeout_s):
                connection = await self._connected()
                process = await connection.run(self._command, input=call)
                if process.exit_status is None:
                    raise asyncssh.ConnectionLost("the connection closed during a call")
                return process
        except (OSError, asyncssh.Error):
            self._drop(connection)
            raise

    async def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
            await self._connection.wait_closed()
            self._connection = None

    async def _connected(self) -> asyncssh.SSHClientConnection:
        async with self._connect_lock:
            if self._connection is None or self._connection.is_closed():
                self._connection = await asyncssh.connect(**self._options)
            return self._connection

    def _drop(self, connection: asyncssh.SSHClientConnection | None) -> None:
        """Drops a failed connection; the next call opens a new one."""
        if connection is not None:
            connection.abort()
        if self._connection is connection:
            self._connection = None

    def _provider_error(self, problem: Exception) -> ProviderError:
        match problem:
            case TimeoutError():
                return RetryError(
                    f"cannot call {self._where}: no answer within {self._timeout_s:g} s; retry later",
                    code="provider.no_answer",
                )
            case asyncssh.HostKeyNotVerifiable():
                hosts = self._options["known_hosts"]
                return AuthError(
                    f"cannot call {self._where}: its key is not in {hosts}: {problem}; verify the key, then add it",
                    code="provider.unknown_host_key",
                )
            case asyncssh.PermissionDenied():
                return AuthError(
                    f"cannot log in to {self._where}: {problem}; check user and key_files",
                    code="provider.login_refused",
                )
            case FileNotFoundError() | PermissionError():
                return AuthError(
                    f"cannot call {self._where}: {problem}; check the paths of key_files and known_hosts",
                    code="provider.key_unreadable",
                )
            case _:
                return RetryError(
                    f"cannot call {self._where}: {str(problem) or type(problem).__name__}; check that it is reachable",
                    code="provider.host_unreachable",
                )

    def _answer(self, do: str, process: asyncssh.SSHCompletedProcess) -> dict[str, Any]:
        error_lines = str(process.stderr or "").strip().splitlines()
        if process.exit_status == 0:
            try:  # the shell of the host may print lines before
                answer: dict[str, Any] = json.loads(str(process.stdout).strip().rpartition("\n")[2])
            except ValueError:
                raise UnknownError(
                    f"cannot {do} on {self._where}: its shell answers instead of the program; check the user's login",
                    code="provider.foreign_answer",
                ) from None
            if "invalid" in answer:
                raise InvalidError(answer["invalid"], code="provider.invalid_request")
            return answer
        last = error_lines[-1][:500] if error_lines else f"exit status {process.exit_status}"
        if process.exit_status in (126, 127):
            raise InvalidError(
                f"cannot run Python on {self._where}: {last}; set `python` to Python 3.11 or later",
                code="provider.python_missing",
            )
        raise UnknownError(f"cannot {do} on {self._where}: {last}; check the host", code="provider.host_error")
