"""Server of a plane: its options, TLS, port and end."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import grpc

from astraflow.access.authenticator import Authenticator
from astraflow.access.authority import Authority
from astraflow.contract.errors import InvalidInput
from astraflow.runtime.clock import Clock
from astraflow.runtime.http.hosts import host_port, is_loopback
from astraflow.wire.channel import MAX_MESSAGE_BYTES
from astraflow.wire.incoming_calls import CallInterceptor
from astraflow.wire.listener_limits import DATA_LIMITS, ListenerLimits, limits_without_certificates
from astraflow.wire.tls_files import read_ca_certificates, read_key_pair

_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # otherwise a second server would silently share the port
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """Certificate chain and key, PEM; with `client_ca`, clients must show a certificate too (mutual TLS)."""

    certificate: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None = None

    @classmethod
    def read(cls, certificate: Path, key: Path, client_ca: Path | None = None) -> Self:
        """Reads the files. Raises: InvalidInput naming the invalid one."""
        private, chain = read_key_pair(certificate, key)
        return cls(certificate=chain, key=private, client_ca=read_ca_certificates(client_ca) if client_ca else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    """Address, credentials and TLS of a service. Port 0 selects a free port."""

    host: str = "127.0.0.1"
    port: int = 0
    token: str = field(repr=False)
    """The run token, which permits every call and seals credentials."""
    tls: ServerTls | None = None
    authority: Authority | None = None
    """Certificate authority of the run; the service rejects its revoked credentials, and issues certificates where
    enabled."""
    enroll_port: int = 0
    """With mutual TLS, the port where callers without a certificate enroll."""
    drain_s: float = 2.0
    """Time for calls in flight to end on shutdown."""
    recheck_s: float = 2.0
    """Delay after which an idle stream ends once its caller is revoked or expired."""

    @property
    def requires_certificates(self) -> bool:
        """Returns whether callers must present a certificate that the run's authority issued to them."""
        return self.authority is not None and self.tls is not None and self.tls.client_ca == self.authority.pem


def authority_tls(
    authority: Authority, host: str, names: tuple[str, ...] = (), *, clock: Clock | None = None
) -> ServerTls:
    """Returns mutual TLS with the run's own certificates, for a service known by its host and these names."""
    own = authority.for_service(host, names, clock=clock)
    return ServerTls(certificate=own.certificate, key=own.key, client_ca=authority.pem)


@asynccontextmanager
async def serving(
    listen: ListenOptions,
    *add: Callable[[grpc.aio.Server], None],
    authenticator: Authenticator | None = None,
    limits: ListenerLimits = DATA_LIMITS,
) -> AsyncIterator[str]:
    """Serves the servicers that the `add` functions register (as in `lambda server: add_XServicer_to_server(servicer,
    server)`).

    authenticator: made from `listen` if the service itself does not pass one. limits: of the listener.
    Yields the bound address `HOST:PORT`; leaving the block drains and stops. Raises: InvalidInput when the port is
    taken, or for an address beyond loopback without a token or without TLS.
    """
    check_listen_options(listen)
    if not is_loopback(listen.host) and not (listen.tls and listen.tls.client_ca):
        limits = limits_without_certificates(limits)
    server = grpc.aio.server(
        interceptors=(
            CallInterceptor(authenticator or authenticator_for(listen), limits=limits, recheck_s=listen.recheck_s),
        ),
        options=(*_OPTIONS, *limits.options()),
    )
    for register in add:
        register(server)
    port = _bind(server, listen)
    await server.start()
    try:
        yield host_port(listen.host, port)
    finally:
        await server.stop(listen.drain_s)


def authenticator_for(listen: ListenOptions, *, clock: Clock | None = None) -> Authenticator:
    """Returns the authenticator of a service with these options."""
    return Authenticator(
        listen.token, authority=listen.authority, requires_certificate=listen.requires_certificates, clock=clock
    )


def check_listen_options(listen: ListenOptions) -> None:
    """Checks the options. Raises: InvalidInput for options that would admit unauthenticated callers."""
    if is_loopback(listen.host):
        return
    if not listen.token:
        raise InvalidInput(
            f"cannot listen on {listen.host!r}: without a token any network peer could call it; set a token",
            code="listen.token_required",
        )
    if listen.tls is None:
        raise InvalidInput(
            f"cannot listen on {listen.host!r}: without TLS the token and the data would cross the network "
            "unencrypted; give --authority (the run directory has one), or --tls-certificate and --tls-key",
            code="listen.tls_required",
        )


@asynccontextmanager
async def serving_without_token(
    host: str, port: int, tls: ServerTls | None, *add: Callable[[grpc.aio.Server], None], limits: ListenerLimits
) -> AsyncIterator[str]:
    """Serves peers of a third-party protocol that have no run token; only TLS can restrict them.

    Yields the bound address. Errors become statuses as usual. Raises: InvalidInput when the port is taken.
    """
    listen = ListenOptions(host=host, port=port, token="", tls=tls)
    server = grpc.aio.server(
        interceptors=(CallInterceptor(None, limits=limits),), options=(*_OPTIONS, *limits.options())
    )
    for register in add:
        register(server)
    bound = _bind(server, listen)
    await server.start()
    try:
        yield host_port(host, bound)
    finally:
        await server.stop(listen.drain_s)


def _bind(server: grpc.aio.Server, listen: ListenOptions) -> int:
    address = host_port(listen.host, listen.port)
    if not 0 <= listen.port < 2**16:  # gRPC would use port 1 for 65537
        raise InvalidInput(
            f"cannot listen on {address}: the port is out of range; use 1 to 65535, or 0 for a free one",
            code="listen.invalid_port",
        )
    try:
        if listen.tls is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, _credentials(listen.tls))
    except RuntimeError:
        raise InvalidInput(
            f"cannot listen on {address}: the port is in use or the address is not this machine's; "
            "stop the process that uses it or choose another port",
            code="listen.address_unavailable",
        ) from None


def _credentials(tls: ServerTls) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials(
        [(tls.key, tls.certificate)],
        root_certificates=tls.client_ca,
        require_client_auth=tls.client_ca is not None,
    )
