"""What is said about who may join a run."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinToken:
    """A secret that is exchanged for one credential, or for one per exchange if it is reusable."""

    token: str = field(repr=False)
    id: str
    """What events and revocations call it."""
    expires_at: float
    """Unix seconds."""
    port: int
    """Where to join, on the host of the service that minted it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJoinToken:
    """A join token as a list shows it, without the secret."""

    id: str
    role: str
    """What its holder becomes."""
    name: str
    pool: str
    expires_at: float
    """Unix seconds."""
    is_reusable: bool
    uses: int
    """How often it was exchanged."""
    most_uses: int
    """Of a reusable token: exchanges after which it is refused; 0 for no limit."""
    state: str
    """`minted`, `used` or `revoked`."""
