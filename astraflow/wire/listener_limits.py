"""Limits of a listener: resources that gRPC grants to peers before any code of the service runs.

A call is authenticated by its metadata, which arrive before its message. Until then a peer can open connections and
streams and fill the streams' windows; each of these has a limit here. `wire.request_limits` limits the messages of
single methods.
"""

from dataclasses import dataclass, replace

from astraflow.wire.channel import PIECE_BYTES

KIB = 2**10
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLimits:
    """Limits of one listener, as gRPC options. None keeps gRPC's default."""

    message_bytes: int
    """Largest message that a peer may send; a larger request is sent in pieces of this size."""
    window_bytes: int
    """Bytes of one stream that are received before the service reads them. Long-distance links need large windows."""
    streams: int
    """Open calls per connection. Further calls of a client wait."""
    handshake_s: float = 20.0
    """Time after which a connection without HTTP/2 (over TLS, where TLS is used) is closed."""
    metadata_bytes: int = 16 * KIB
    """Largest metadata of a call."""
    request_s: float = 30.0
    """Time for a request to arrive, after its call began; for a stream of requests, the time for each."""
    receiving: int = 6
    """Requests that are received at the same time. Each takes up to three times `message_bytes`: a complete piece, and
    twice as much for the next one, of which gRPC keeps the frames."""
    peer_receiving: int = 3
    """The same, of one credential."""
    handled_bytes: int = 32 * MIB
    """Size of the requests that are being handled, above which no further one is received."""
    peer_calls: int = 64
    """Open calls of one credential."""
    peer_unread: int = 64
    """Open calls of one credential whose request has not arrived; each may fill a window."""
    peer_connections: int = 16
    """Connections with open calls of one credential."""
    connections: int | None = None
    """Open connections of all peers; further connections are closed at once."""
    idle_s: float | None = None
    """Time after which a connection without a call is closed."""
    age_s: float | None = None
    """Time after which a connection is closed, even with open calls."""

    def options(self) -> tuple[tuple[str, int], ...]:
        """Returns the channel arguments of a gRPC server."""
        arguments = {
            "grpc.max_receive_message_length": self.message_bytes,
            "grpc.compression_enabled_algorithms_bitset": 1,  # none: a message would take more memory than its size
            "grpc.max_concurrent_streams": self.streams,
            "grpc.http2.lookahead_bytes": self.window_bytes,
            "grpc.http2.bdp_probe": int(self.window_bytes > _SMALL_WINDOW_BYTES),  # it makes windows larger
            "grpc.max_metadata_size": self.metadata_bytes,
            "grpc.absolute_max_metadata_size": self.metadata_bytes,
            "grpc.server_handshake_timeout_ms": _ms(self.handshake_s),
            "grpc.max_allowed_incoming_connections": self.connections,
            "grpc.max_connection_idle_ms": _ms(self.idle_s),
            "grpc.max_connection_age_ms": _ms(self.age_s),
            "grpc.max_connection_age_grace_ms": _ms(_GRACE_S if self.age_s is not None else None),
        }
        return tuple((name, value) for name, value in arguments.items() if value is not None)


_GRACE_S = 5.0
"""Time for open calls to end when their connection reaches its maximum age."""

_SMALL_WINDOW_BYTES = 64 * KIB
"""HTTP/2's default, and the smallest window that gRPC supports."""


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(1000 * seconds)


DATA_LIMITS = ListenerLimits(message_bytes=PIECE_BYTES, window_bytes=_SMALL_WINDOW_BYTES, streams=256)
"""Data and control planes. A push waits in its window until it is read; then the window grows to its next piece."""

WEIGHTS_LIMITS = ListenerLimits(
    message_bytes=16 * MIB, window_bytes=64 * MIB, streams=64, peer_calls=128, peer_unread=16, peer_connections=64
)
"""Weight plane: versions arrive in chunks of 1 MiB, after a manifest of some 100 bytes for each tensor. Publishing over
300 ms needs the large window, which gRPC then adapts to the link: 16 MiB at least."""

FLEET_LIMITS = ListenerLimits(message_bytes=16 * MIB, window_bytes=_SMALL_WINDOW_BYTES, streams=256)
"""Fleet plane: the longest requests hold a step of the maintainer's transcript."""

ENROLMENT_LIMITS = ListenerLimits(
    message_bytes=16 * KIB,
    window_bytes=_SMALL_WINDOW_BYTES,
    streams=4,
    handshake_s=5.0,
    metadata_bytes=8 * KIB,
    connections=512,
    idle_s=5.0,
    age_s=20.0,
)
"""Enrolment, open to peers without a certificate: a request is a certificate signing request and three names."""

SCALER_LIMITS = ListenerLimits(message_bytes=64 * KIB, window_bytes=_SMALL_WINDOW_BYTES, streams=256, connections=256)
"""KEDA's plane, which has no token: a request is the name and metadata of a scaled object."""

_OPEN_WINDOW_BYTES = MIB


def limits_without_certificates(limits: ListenerLimits) -> ListenerLimits:
    """Returns the limits for a network listener whose peers have no certificate: with smaller windows."""
    return replace(limits, window_bytes=min(limits.window_bytes, _OPEN_WINDOW_BYTES))
