"""The kinds of models there are, and what each costs."""

from pydantic import Field

from astraflow.runtime.config import Config
from astraflow.runtime.plugins import Registry
from maintainer.llm.base import Llm, Usage


class Prices(Config):
    """US dollars for a million tokens. What a service charges only its customer knows: there are no defaults."""

    input: float = Field(ge=0)
    """Read by the model anew."""
    output: float = Field(ge=0)
    """Written by the model."""
    cache_read: float | None = Field(default=None, ge=0)
    """Read from the service's cache; a tenth of `input` when absent."""
    cache_write: float | None = Field(default=None, ge=0)
    """Read and kept in the cache; 1.25 times `input` when absent."""

    def usd(self, usage: Usage) -> float:
        """What that cost.

        >>> Prices(input=4.0, output=20.0).usd(Usage(input=500_000, output=100_000, cache_read=1_000_000))
        4.4
        """
        read = self.input / 10 if self.cache_read is None else self.cache_read
        written = self.input * 1.25 if self.cache_write is None else self.cache_write
        spent = usage.input * self.input + usage.output * self.output
        return (spent + usage.cache_read * read + usage.cache_write * written) / 1e6


models: Registry[Llm] = Registry(
    "model",
    {
        "messages_api": "maintainer.llm.messages_api",
        "chat_completions": "maintainer.llm.chat_completions",
        "scripted": "maintainer.llm.scripted",
    },
    advice="pip install 'astraflow[llm]' brings what hosted models need",
)
