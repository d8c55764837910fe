"""Tenants compute in proportion to their shares, whatever the size of their passes."""

import threading
from collections import Counter

from astraflow.tinker.executor import Executor


class Passes:
    """Passes of a cost, which are counted."""

    def __init__(self, name: str, cost: int, done: "Done", *, passes: int) -> None:
        self._name, self._cost, self._done, self._left = name, cost, done, passes

    def advance(self) -> tuple[int, bool]:
        self._left -= 1
        self._done.add(self._name, self._cost)
        return self._cost, self._left == 0


class Done:
    def __init__(self, passes: int) -> None:
        self.order: list[str] = []
        self.tokens: Counter[str] = Counter()
        self.is_complete = threading.Event()
        self._passes = passes

    def add(self, name: str, cost: int) -> None:
        if len(self.order) == self._passes:  # the executor goes on until it is closed
            return
        self.order.append(name)
        self.tokens[name] += cost
        if len(self.order) == self._passes:
            self.is_complete.set()


def run(done: Done, executor: Executor) -> None:
    executor.start()
    assert done.is_complete.wait(10)
    executor.close()


def test_tokens_of_tenants_with_work_are_in_proportion_to_their_shares() -> None:
    done = Done(passes=40)
    executor = Executor({"ann": 1.0, "bob": 3.0}, on_start=lambda: None)
    executor.submit("ann", "model", Passes("ann", 50, done, passes=100))
    executor.submit("bob", "model", Passes("bob", 10, done, passes=400))
    run(done, executor)
    assert abs(done.tokens["bob"] - 3 * done.tokens["ann"]) <= 3 * 50 + 10


def test_queues_of_a_tenant_take_turns_and_a_queue_keeps_its_order() -> None:
    done = Done(passes=6)
    executor = Executor({"ann": 1.0}, on_start=lambda: None)
    for name in ("a1", "a2"):
        executor.submit("ann", "a", Passes(name, 1, done, passes=2))
    executor.submit("ann", "b", Passes("b1", 1, done, passes=2))
    run(done, executor)
    assert done.order == ["a1", "b1", "a1", "b1", "a2", "a2"]


def test_a_tenant_gets_no_credit_for_the_time_in_which_it_had_no_work() -> None:
    done = Done(passes=10)
    executor = Executor({"ann": 1.0, "bob": 1.0}, on_start=lambda: None)
    executor._tenants["ann"].used = 1000.0
    executor.submit("ann", "model", Passes("ann", 10, done, passes=100))
    executor.submit("bob", "model", Passes("bob", 10, done, passes=100))
    run(done, executor)
    assert done.tokens["ann"] == done.tokens["bob"] == 50
