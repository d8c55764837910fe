"""Random amounts with a given mean: how long stand-ins take and how much they write."""

import math
import random
from typing import Literal

from pydantic import Field

from astraflow.runtime.config import Config


class Distribution(Config):
    """An amount that is drawn anew each time; never negative."""

    kind: Literal["constant", "uniform", "exponential", "lognormal"] = "lognormal"
    """Lognormal has the long tail that answers of language models have."""
    mean: float = Field(ge=0)
    spread: float = Field(default=0.5, ge=0)
    """Lognormal: standard deviation of the logarithm. Uniform: half the width as a share of the mean, at most 1."""

    def draw(self, source: random.Random) -> float:
        """One amount."""
        if self.mean == 0:
            return 0.0
        match self.kind:
            case "constant":
                return self.mean
            case "uniform":
                reach = self.mean * min(self.spread, 1.0)
                return source.uniform(self.mean - reach, self.mean + reach)
            case "exponential":
                return source.expovariate(1 / self.mean)
            case "lognormal":
                return source.lognormvariate(math.log(self.mean) - self.spread**2 / 2, self.spread)
