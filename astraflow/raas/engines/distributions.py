"""Random amounts with a given mean, for durations and lengths of simulated components."""

import math
import random
from typing import Literal

from pydantic import Field

from astraflow.runtime.config import Config


class Distribution(Config):
    """Distribution of a non-negative amount."""

    kind: Literal["constant", "uniform", "exponential", "lognormal"] = "lognormal"
    """Lognormal has a long tail, as the replies of language models do."""
    mean: float = Field(ge=0)
    spread: float = Field(default=0.5, ge=0)
    """Lognormal: standard deviation of the logarithm. Uniform: half the width as a share of the mean, at most 1."""

    def draw(self, source: random.Random) -> float:
        """Draws one amount."""
        if self.mean == 0:
            return 0.0
        match self.kind:
            case "constant":
                return self.mean
            case "uniform":
                half_width = self.mean * min(self.spread, 1.0)
                return source.uniform(self.mean - half_width, self.mean + half_width)
            case "exponential":
                return source.expovariate(1 / self.mean)
            case "lognormal":
                return source.lognormvariate(math.log(self.mean) - self.spread**2 / 2, self.spread)
