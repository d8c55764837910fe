"""Hops of an episode: the spans of its processing, for inspection of sampled groups."""

from dataclasses import dataclass

MAX_HOPS = 100
"""Largest number of hops that a node reports from the inside of one episode; later ones are left out."""

LEASE, EPISODE, GENERATE, TOOL, REWARD = "rl.lease", "rl.episode", "rl.generate", "rl.tool", "rl.reward"
PUSH, ADMIT, BATCH, STEP = "rl.push", "rl.admit", "rl.batch", "rl.step"
"""Names of spans, as in exported traces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One span of an episode's way from lease to step."""

    name: str
    """Name of the span, such as `rl.generate`."""
    began_at: float
    """Unix seconds, by the clock of the machine that recorded it."""
    duration_s: float
    """Duration. Seconds."""
    detail: str = ""
    """Attributes of the span, such as `policy solver, prompt_tokens 34`."""
    error: str = ""
    """Exception that was raised; empty without one."""

    @property
    def ended_at(self) -> float:
        """End, in Unix seconds."""
        return self.began_at + self.duration_s
