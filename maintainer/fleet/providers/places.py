"""Places of launches, such as regions, hosts and namespaces, in files that outlive the provider's configuration.

A place that left the configuration may still have instances, so it must not be taken for an empty one.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote

from maintainer.fleet.providers.base import Instance, InvalidError, PartialList, ProviderError, UnknownError

T = TypeVar("T")

SETTLED_S = 3600.0
"""Age after which a launch that is missing in the list of its place has ended. Seconds."""


class LaunchPlaces:
    """Places of the launches of one provider.

    The empty file `places/PLACE/LAUNCH` exists from before a launch until its end. Methods block, and raise Unknown
    when the directory is unusable.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "places"

    def remember(self, launch_id: str, place_name: str) -> None:
        """Records the place of a launch. Call it before the launch."""
        with _translated_errors():
            folder = self._directory / _encoded(place_name)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _encoded(launch_id)).touch()

    def of(self, launch_id: str) -> frozenset[str]:
        """Returns the places of a launch; empty for an unknown one."""
        with _translated_errors():
            return frozenset(unquote(path.parent.name) for path in self._directory.glob(f"*/{_encoded(launch_id)}"))

    def check(self, launch_id: str, read: Collection[str]) -> None:
        """Checks that a launch without an instance in the places `read` has no other place. Raises: InvalidError."""
        for place_name in sorted(self.of(launch_id) - set(read)):
            raise self.removed(place_name)

    def end(self, launch_id: str, read: Collection[str]) -> None:
        """Forgets a launch that has no instance in the places `read`. Raises: InvalidError if it has another place."""
        self.check(launch_id, read)
        with _translated_errors():
            for place_name in self.of(launch_id):
                (self._directory / _encoded(place_name) / _encoded(launch_id)).unlink(missing_ok=True)

    def elsewhere(self, configured: Collection[str]) -> Mapping[str, str]:
        """Returns the launches in places that are no longer configured, each with its place."""
        with _translated_errors():
            return {
                unquote(path.name): unquote(folder.name)
                for folder in self._directory.glob("*")
                if unquote(folder.name) not in configured
                for path in folder.iterdir()
            }

    def listed(
        self, answers: Mapping[str, Iterable[Instance] | ProviderError], *, handles: str = ""
    ) -> tuple[Instance, ...]:
        """Returns a provider's list: partial if a place gave an error, or has launches but is no longer configured.

        answers: instances or error of each place. handles: beginning of the ids of handles in a place, as in `{}/`.
        Raises: the first error when no place could be read.
        """
        errors = {place_name: answer for place_name, answer in answers.items() if isinstance(answer, ProviderError)}
        if errors and len(errors) == len(answers):
            raise next(iter(errors.values()))
        instances: list[Instance] = []
        for place_name, answer in answers.items():
            if not isinstance(answer, ProviderError):
                instances += answer
                self._settle(place_name, {instance.handle.launch_id for instance in instances})
        unread: dict[str, ProviderError] = {handles.format(place_name): error for place_name, error in errors.items()}
        unread |= {launch: self.removed(place_name) for launch, place_name in self.elsewhere(answers.keys()).items()}
        return PartialList(instances, unread=unread) if unread else tuple(instances)

    def removed(self, place_name: str) -> InvalidError:
        """Returns the error of a place that is no longer configured."""
        return InvalidError(
            f"cannot reach instances in {place_name}: it is no longer configured; configure it until they have ended, "
            f"or end them there and delete {self._directory / _encoded(place_name)}",
            code="provider.place_removed",
        )

    def _settle(self, place_name: str, listed: Collection[str]) -> None:
        """Forgets launches that have ended without a retire call."""
        with _translated_errors():
            for path in (self._directory / _encoded(place_name)).glob("*"):
                with suppress(FileNotFoundError):  # a retire call may forget it at the same time
                    if unquote(path.name) not in listed and path.stat().st_mtime < time.time() - SETTLED_S:
                        path.unlink()


async def ask_all(places: Iterable[str], ask: Callable[[str], Awaitable[T]]) -> dict[str, T | ProviderError]:
    """Asks all places concurrently; returns the answer or the error of each."""

    async def answer(name: str) -> T | ProviderError:
        try:
            return await ask(name)
        except ProviderError as problem:
            return problem

    names = tuple(places)
    return dict(zip(names, await asyncio.gather(*map(answer, names)), strict=True))


def _encoded(name: str) -> str:
    return quote(name, safe="")


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise UnknownError(
            f"cannot use the places of launches: {problem}; check the directory of the fleet service",
            code="provider.folder_unusable",
        ) from problem
