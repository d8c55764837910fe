"""One host over SSH: a connection that is kept, and calls of the program `remote_host` there.

The command line is always the same, whatever is asked: a Python program that reads its work from its input. Nothing of
a request is ever part of it, so nothing has to be quoted and nothing shows in the host's list of processes.
"""

import asyncio
import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

import asyncssh

from maintainer.fleet.providers import local_machine, machine_folders, remote_host
from maintainer.fleet.providers.base import Auth, Invalid, ProviderError, Retry, Unknown

BOOTSTRAP = """
import json, os, pathlib, sys, tempfile
call = json.load(sys.stdin)
base = pathlib.Path(call["directory"]).expanduser()
base.mkdir(parents=True, exist_ok=True, mode=0o700)
if base.stat().st_uid != os.getuid() or base.stat().st_mode & 0o022:
    sys.exit(f"{base} must belong to this user, and nobody else may write there")
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
from maintainer.fleet.providers import remote_host
print(remote_host.main(str(base), call["request"]))
"""
"""Puts the modules where they can be imported, once, and hands the request to them."""

_MODULES = {
    f"{module.__name__.replace('.', '/')}.py": Path(module.__file__ or "").read_text(encoding="utf-8")
    for module in (local_machine, machine_folders, remote_host)
}
_DIGEST = hashlib.blake2b(json.dumps(_MODULES, sort_keys=True).encode(), digest_size=8).hexdigest()

_SESSIONS = 5
"""Calls beside each other on a connection: servers allow ten (`MaxSessions`), and count those that are about to end."""

_BROKEN = (asyncssh.ConnectionLost, asyncssh.ChannelOpenError, ConnectionError)

_KEEPALIVE_S = 15.0


class SshLink:
    """A host. Its key must be among the known ones, always: nothing is taken on trust.

    address, port, user, key_files: where and as whom. known_hosts: a file as OpenSSH has them. directory: on the host,
    where machines are kept. python: its Python.
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
        self._turn = asyncio.Lock()
        self._sessions = asyncio.Semaphore(_SESSIONS)

    async def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """The host's answer. Raises: ProviderError; Retry where it may have happened and where nobody answers."""
        call = {
            "directory": self._directory,
            "digest": _DIGEST,
            "modules": _MODULES,
            "request": {"do": do, **request},
        }
        text = json.dumps(call)
        try:
            try:
                done = await self._run(text)
            except _BROKEN:  # it may have ended while nobody used it; whatever is asked may be asked twice
                done = await self._run(text)
        except (OSError, asyncssh.Error) as problem:
            raise self._explained(problem) from problem
        return self._answer(do, done)

    async def _run(self, call: str) -> asyncssh.SSHCompletedProcess:
        connection = None
        try:
            async with self._sessions, asyncio.timeout(self._timeout_s):
                connection = await self._connected()
                done = await connection.run(self._command, input=call)
                if done.exit_status is None:
                    raise asyncssh.ConnectionLost("it broke off in the middle of a call")
                return done
        except (OSError, asyncssh.Error):
            self._drop(connection)
            raise

    async def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()
            await self._connection.wait_closed()
            self._connection = None

    async def _connected(self) -> asyncssh.SSHClientConnection:
        async with self._turn:
            if self._connection is None or self._connection.is_closed():
                self._connection = await asyncssh.connect(**self._options)
            return self._connection

    def _drop(self, connection: asyncssh.SSHClientConnection | None) -> None:
        """The next call begins anew: what is left of this connection is worth nothing."""
        if connection is not None:
            connection.abort()
        if self._connection is connection:
            self._connection = None

    def _explained(self, problem: Exception) -> ProviderError:
        match problem:
            case TimeoutError():
                return Retry(f"{self._where} did not answer within {self._timeout_s:g} s")
            case asyncssh.HostKeyNotVerifiable():
                known = self._options["known_hosts"]
                return Auth(
                    f"{self._where} is not who {known} says: {problem}; put its key there once you are sure of it"
                )
            case asyncssh.PermissionDenied():
                return Auth(f"{self._where} lets nobody in with this user and key: {problem}")
            case FileNotFoundError() | PermissionError():
                return Auth(f"{self._where} cannot be asked: {problem}")
            case _:
                return Retry(f"{self._where} does not answer: {str(problem) or type(problem).__name__}")

    def _answer(self, do: str, done: asyncssh.SSHCompletedProcess) -> dict[str, Any]:
        said = str(done.stderr or "").strip().splitlines()
        if done.exit_status == 0:
            answer: dict[str, Any] = json.loads(str(done.stdout))
            if "invalid" in answer:
                raise Invalid(answer["invalid"])
            return answer
        last = said[-1][:500] if said else f"exit status {done.exit_status}"
        if done.exit_status in (126, 127):
            raise Invalid(f"{self._where} has no such Python: {last}; `python` says where Python 3.11 or later is")
        raise Unknown(f"{self._where} could not {do}: {last}")
