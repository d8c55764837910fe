"""Registry of models, and their prices."""

from pydantic import Field

from astraflow.runtime.config.base import Config
from astraflow.runtime.plugins import Registry
from maintainer.agent.llm.interface import Llm, Usage


class Prices(Config):
    """US dollars per million tokens. Prices depend on your contract, so there are no defaults."""

    input: float = Field(ge=0)
    """Uncached input tokens."""
    output: float = Field(ge=0)
    """Output tokens."""
    cache_read: float | None = Field(default=None, ge=0)
    """Input tokens read from the service's cache; None: a tenth of `input`."""
    cache_write: float | None = Field(default=None, ge=0)
    """Input tokens written to the cache; None: 1.25 times `input`."""

    def usd(self, usage: Usage) -> float:
        """Cost in US dollars.

        >>> Prices(input=4.0, output=20.0).usd(Usage(input=500_000, output=100_000, cache_read=1_000_000))
        4.4
        """
        read_price = self.input / 10 if self.cache_read is None else self.cache_read
        write_price = self.input * 1.25 if self.cache_write is None else self.cache_write
        uncached_cost = usage.input * self.input + usage.output * self.output
        return (uncached_cost + usage.cache_read * read_price + usage.cache_write * write_price) / 1e6


models: Registry[Llm] = Registry(
    "model",
    {
        "messages_api": "maintainer.agent.llm.messages_api",
        "chat_completions": "maintainer.agent.llm.chat_completions",
        "scripted": "maintainer.agent.llm.scripted",
    },
    heavy=("messages_api",),
    extra="llm",
)
