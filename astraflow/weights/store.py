"""Every policy's versions, in one directory that one process owns."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

from astraflow.contract.errors import CorruptData, InvalidInput, UnknownPolicy
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Chunk, Manifest, Transfer, TransferPlan, VersionNotice
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.locks import held
from astraflow.runtime.logs import get_logger
from astraflow.weights.chunks import check_chunk
from astraflow.weights.config import WeightsConfig
from astraflow.weights.files import noticing_full_disk, sync_folder
from astraflow.weights.history import History
from astraflow.weights.signing import VerifyingKey
from astraflow.weights.sources import Source

log = get_logger()


class Incoming:
    """A publish while its file arrives. `take` or `discard` ends it."""

    def __init__(self, history: History, manifest: Manifest, transfer: Transfer) -> None:
        self._history = history
        self._manifest = manifest
        self._transfer = transfer
        self._part = history.part()
        self._received = 0

    def add(self, chunk: Chunk) -> None:
        """Collect the next chunk. Raises: CorruptData, StorageFull."""
        check_chunk(chunk, expected_offset=self._received, end=self._transfer.size_bytes)
        self._part.write(chunk.data)
        self._received += len(chunk.data)

    def take(self) -> bool:
        """Prove and keep the version; False when it was there already. Raises: as `History.take`."""
        if self._received != self._transfer.size_bytes:
            raise CorruptData(f"the publish ended at byte {self._received} of {self._transfer.size_bytes}")
        return self._history.take(self._manifest, self._transfer, self._part)

    def discard(self) -> None:
        """Remove what was collected and not taken."""
        self._part.discard()


class WeightStore:
    """The versions of all policies. Methods block; any thread may call them. Built by `opened`."""

    def __init__(self, directory: Path, config: WeightsConfig, clock: Clock, trusted: VerifyingKey | None) -> None:
        self._directory = directory
        self._config = config
        self._clock = clock
        self._trusted = trusted
        self._adding = threading.Lock()
        self._histories: dict[PolicyId, History] = {}
        for folder in sorted(path for path in directory.iterdir() if path.is_dir()):
            history = History(folder, config, clock)
            if history.records:
                self._histories[PolicyId(unquote(folder.name))] = history
                log.info("versions_recovered", folder=str(folder), newest=history.records[-1].version)

    def begin(self, manifest: Manifest, transfer: Transfer) -> Incoming | None:
        """Start a publish; None when this very version is there already.

        Raises: as `History.is_wanted`; NotTrusted for a version that the pinned key did not sign.
        """
        if self._trusted is not None:
            self._trusted.check(manifest)
        with self._adding:
            history = self._histories.get(manifest.policy)
            if history is None:
                history = History(self._folder(manifest.policy), self._config, self._clock)
            if not history.is_wanted(manifest, transfer):
                return None
            if manifest.policy not in self._histories:
                self._make_folder(manifest.policy)
                self._histories[manifest.policy] = history
        return Incoming(history, manifest, transfer)

    def tidy(self, policy: PolicyId) -> None:
        """Write an anchor if one is due and forget versions beyond the bound."""
        self._histories[policy].tidy()

    def notices(self, policy: PolicyId, *, after: Version | None = None) -> tuple[VersionNotice, ...]:
        """Every version that is kept and newer than `after`, oldest first; empty for a policy without any."""
        history = self._histories.get(policy)
        records = history.records if history else ()
        return tuple(record.notice for record in records if after is None or record.version > after)

    def plan(self, policy: PolicyId, *, have: Version | None, want: Version | None) -> TransferPlan:
        """The way with the fewest bytes. Raises: UnknownPolicy, UnknownVersion."""
        return self._history(policy).plan(have=have, want=want)

    def open(self, transfer: Transfer) -> Source:
        """The bytes of a transfer, to be closed. Raises: UnknownPolicy, UnknownVersion."""
        return self._history(transfer.policy).open(transfer)

    def _history(self, policy: PolicyId) -> History:
        history = self._histories.get(policy)
        if history is None or not history.records:
            known = ", ".join(sorted(self._histories)) or "none yet"
            raise UnknownPolicy(f"nothing is published for policy {policy}; policies published: {known}")
        return history

    def _make_folder(self, policy: PolicyId) -> None:
        with noticing_full_disk(self._folder(policy)):
            self._folder(policy).mkdir(exist_ok=True)
            sync_folder(self._directory)

    def _folder(self, policy: PolicyId) -> Path:
        return self._directory / quote(policy, safe="")


@contextmanager
def opened(
    directory: Path, config: WeightsConfig, *, clock: Clock | None = None, trusted: VerifyingKey | None = None
) -> Iterator[WeightStore]:
    """The store in `directory`, made when it is not there, recovered when it is; held until the block ends.

    trusted: the key that must have signed what is taken in; None in a run that does not sign.
    Raises: InvalidInput when the directory cannot be used or another process holds it.
    """
    refusal = f"another weight store is using {directory}: stop it or choose another one"
    with ExitStack() as stack:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(held(directory / "lock", refusal=refusal))
        except OSError as problem:
            raise InvalidInput(f"weights cannot be kept in {directory}: {problem.strerror}") from problem
        yield WeightStore(directory, config, clock or SystemClock(), trusted)
