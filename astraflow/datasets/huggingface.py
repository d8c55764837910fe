"""Prompts from data sets of the Hugging Face `datasets` library, saved here or on the hub."""

from typing import Annotated

from astraflow.datasets import datasets
from astraflow.datasets.prompts import RowOptions, RowPrompts
from astraflow.datasets.tables.arrow import ArrowTable, Origin
from astraflow.runtime.overrides import SetBy


class HuggingfaceOptions(RowOptions):
    """Which data set, and which part of it."""

    path: Annotated[str, SetBy.PLACE]
    """A folder that `save_to_disk` wrote, a file (Arrow, Parquet, JSON, JSON lines, CSV), a folder of files, or a name
    on the hub, as `owner/name`. HF_TOKEN opens gated ones, HF_HOME says where they are kept."""
    split: Annotated[str, SetBy.AGENT] = "train"
    """Also a slice of one: `train[:8000]`, `test[50%:]`; of a folder by `save_to_disk` the whole split."""
    name: Annotated[str, SetBy.RECIPE] = ""
    """Configuration of the data set, if it has several."""
    revision: Annotated[str, SetBy.RECIPE] = ""
    """Commit, branch or tag on the hub; name a commit for a run that can be repeated."""
    files: Annotated[tuple[str, ...], SetBy.RECIPE] = ()
    """Files of the folder or of the hub's repository, read instead of what its card says."""
    cache: Annotated[str, SetBy.RECIPE] = ""
    """Folder for what is fetched and converted to Arrow; the library's own when empty."""


@datasets.register("huggingface", options=HuggingfaceOptions)
class Huggingface(RowPrompts):
    """Rows of one split, mapped into memory: any order is as fast as any other."""

    def __init__(self, options: HuggingfaceOptions, _seed: int) -> None:
        origin = Origin(
            path=options.path,
            split=options.split,
            config=options.name,
            revision=options.revision,
            files=options.files,
            cache=options.cache,
        )
        super().__init__(ArrowTable(origin, options.wanted, fields=options.fields), options)
