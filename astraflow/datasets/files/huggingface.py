"""Prompts from datasets of the Hugging Face `datasets` library, local or on the hub."""

from typing import Annotated, ClassVar

from astraflow.datasets import datasets
from astraflow.datasets.files.prompts import RowOptions, RowPrompts
from astraflow.datasets.tables.arrow import ArrowTable, DatasetSource
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.folders.data_root import RemoteSource, SourceKind, is_hub_name, parts_of


class HuggingfaceOptions(RowOptions):
    """Dataset and split to read."""

    path: Annotated[str, SettableBy.DATA_LOCATION]
    """A folder written by `save_to_disk`, a file (Arrow, Parquet, JSON, JSON lines, CSV), a folder of files, or a name
    on the hub, as `owner/name`. HF_TOKEN grants access to gated datasets, HF_HOME sets their cache."""
    split: Annotated[str, SettableBy.AGENT] = "train"
    """Split, or a slice of one: `train[:8000]`, `test[50%:]`; for a folder by `save_to_disk` only a whole split."""
    name: Annotated[str, SettableBy.RECIPE] = ""
    """Configuration of the dataset, if it has several."""
    revision: Annotated[str, SettableBy.RECIPE] = ""
    """Commit, branch or tag on the hub; set a commit for reproducible runs."""
    files: Annotated[tuple[str, ...], SettableBy.RECIPE] = ()
    """Files of the folder or of the hub's repository, read instead of those that its card lists."""
    cache: Annotated[str, SettableBy.RECIPE] = ""
    """Folder for downloads and their conversion to Arrow; empty: the library's default."""

    location_option: ClassVar[str] = "path"

    def remote_source(self) -> RemoteSource | None:
        """Returns the repository on the hub; None for a path."""
        if not is_hub_name(self.path):
            return None
        return RemoteSource(
            kind=SourceKind.DATASET, name=self.path, revision=self.revision, parts=parts_of(self.files, self.name)
        )


@datasets.register("huggingface", options=HuggingfaceOptions)
class Huggingface(RowPrompts):
    """Rows of one split of a data set of the Hugging Face hub, mapped into memory: any order is equally fast."""

    def __init__(self, options: HuggingfaceOptions, _seed: int) -> None:
        origin = DatasetSource(
            path=options.path,
            split=options.split,
            config=options.name,
            revision=options.revision,
            files=options.files,
            cache=options.cache,
        )
        super().__init__(ArrowTable(origin, options.required_fields, fields=options.fields), options)
