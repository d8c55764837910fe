"""Join tokens, which authorize a process to join a run."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinToken:
    """Secret that a process exchanges for one credential, or for one credential per exchange if the token is
    reusable."""

    token: str = field(repr=False)
    id: str
    """Identifier of the token in events and revocations."""
    expires_at: float
    """Unix seconds."""
    port: int
    """Port to join on, on the host of the service that issued the token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJoinToken:
    """A join token in a listing, without the secret."""

    id: str
    role: str
    """Role that the token's holder gets."""
    name: str
    pool: str
    expires_at: float
    """Unix seconds."""
    is_reusable: bool
    uses: int
    """Number of exchanges so far."""
    max_uses: int
    """For a reusable token, number of exchanges after which it is refused; 0 for no limit."""
    state: str
    """`minted`, `used` or `revoked`."""
