"""Receivers of notices on loopback: a web server, and a mail server that can upgrade to TLS and requires a login."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(handler: Handler, *, tls: ssl.SSLContext | None) -> AsyncIterator[int]:
    """Serves until the block ends, then closes every connection; yields the port."""
    connections: dict[asyncio.Task[object], asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections[task] = writer
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
            await handler(reader, writer)
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await asyncio.sleep(0)
        await server.wait_closed()


@dataclass
class WebhookServer:
    """Server that answers with the next of its statuses, the last of them for ever."""

    statuses: list[int]
    headers: str = ""
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    """Headers in lower case, and body, of each request."""
    url: str = ""
    is_silent: bool = False
    """True while it answers nothing, until `goes_on` is set."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def serving(self, *, tls: ssl.SSLContext | None = None) -> AsyncIterator["WebhookServer"]:
        """Serves until the block ends."""
        async with listening(self._answer, tls=tls) as port:
            self.url = f"{'https' if tls else 'http'}://localhost:{port}/hooks/secret-path"
            yield self

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = await reader.readexactly(int(headers["content-length"]))
        self.requests.append((headers, body))
        self.arrived.set()
        if self.is_silent:
            await self.goes_on.wait()
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        writer.write(f"HTTP/1.1 {status} X\r\n{self.headers}Content-Length: 0\r\n\r\n".encode())
        await writer.drain()


@dataclass
class MailServer:
    """SMTP server of one user."""

    user: str = "astraflow"
    password: str = "mail-password"
    tls: ssl.SSLContext | None = None
    refuses: str = ""
    """Recipient that it refuses."""
    mails: list[tuple[list[str], str]] = field(default_factory=list)
    """Recipients and text of each mail."""
    port: int = 0

    @asynccontextmanager
    async def serving(self, *, is_tls_from_start: bool = False) -> AsyncIterator["MailServer"]:
        """Serves until the block ends."""
        async with listening(self._serve, tls=self.tls if is_tls_from_start else None) as self.port:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        recipients: list[str] = []
        writer.write(b"220 mail\r\n")
        while line := (await reader.readline()).decode().strip():
            verb, _, rest = line.partition(" ")
            if verb.upper() == "EHLO":
                writer.write(
                    b"250-mail\r\n250-STARTTLS\r\n250 AUTH PLAIN\r\n" if self.tls else b"250-mail\r\n250 AUTH PLAIN\r\n"
                )
            elif verb.upper() == "STARTTLS" and self.tls is not None:
                writer.write(b"220 go\r\n")
                await writer.drain()
                await writer.start_tls(self.tls)
            elif verb.upper() == "AUTH":
                _, user, password = base64.b64decode(rest.split()[1]).decode().split("\0")
                is_right = (user, password) == (self.user, self.password)
                writer.write(b"235 ok\r\n" if is_right else b"535 no\r\n")
            elif verb.upper() == "RCPT":
                recipient = rest.partition("<")[2].partition(">")[0]
                recipients.append(recipient)
                writer.write(b"550 no\r\n" if recipient == self.refuses else b"250 ok\r\n")
            elif verb.upper() == "DATA":
                writer.write(b"354 go\r\n")
                text = (await reader.readuntil(b"\r\n.\r\n")).decode()
                self.mails.append((recipients, text))
                writer.write(b"250 ok\r\n")
            else:
                writer.write(b"221 bye\r\n" if verb.upper() == "QUIT" else b"250 ok\r\n")
            await writer.drain()
            if verb.upper() == "QUIT":
                break
