"""Crashes at named points, planned by a test."""


class Crash(BaseException):
    """Death of the process at this point. Code that catches errors must not catch it."""


class Crashes:
    """Raises `Crash` when a point is passed for the planned time; `None` for never."""

    def __init__(self, plan: tuple[str, int] | None = None) -> None:
        self._plan = plan
        self.passed: dict[str, int] = {}
        """Point -> how often it was passed."""
        self.has_crashed = False

    def reach(self, point: str) -> None:
        self.passed[point] = self.passed.get(point, 0) + 1
        if (point, self.passed[point]) == self._plan:
            self.has_crashed = True
            raise Crash(point)
