"""What is said about who may join a run."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinToken:
    """Good for one credential. It is a secret: whoever has it first may join with it."""

    token: str = field(repr=False)
    id: str
    """What events and revocations call it."""
    expires_at: float
    """Unix seconds."""
    port: int
    """Where to join, on the host of the service that minted it."""
