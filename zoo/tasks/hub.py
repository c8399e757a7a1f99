"""Rows of a data set on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from tokenrouter.core import InputError
from zoo.tasks.rows import FORMATS, Numbered

_PROBE_S = 5.0


class HubSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A data set: `name` is its configuration, `fingerprint` what its rows must hash to (null: anything), `rows` how
    many are read, streamed (null: all)."""

    id: str
    split: str
    name: str | None = None
    revision: str = "main"
    fingerprint: str | None = None
    rows: Annotated[int, Meta(ge=1)] | None = None

    def check_rows(self, fingerprint: str) -> None:
        """InputError if the rows, which hash to `fingerprint`, are not those that were asked for."""
        if self.fingerprint not in (None, fingerprint):
            raise InputError(
                f"workload.hub.fingerprint={self.fingerprint!r}: the rows of {self.id!r} have changed; allowed is null "
                f"or theirs, {fingerprint!r}"
            )


def read_hub(hub: HubSet, columns: Sequence[str]) -> Numbered:
    """The rows of a split, from the hub or, with HF_HUB_OFFLINE=1, its local cache. InputError if they are not to be
    had, after one attempt."""
    import datasets
    from huggingface_hub import HfApi, constants

    try:
        if not constants.HF_HUB_OFFLINE:  # load_dataset alone would try for half a minute
            HfApi().dataset_info(hub.id, revision=hub.revision, timeout=_PROBE_S)
        if hub.rows is None:
            rows = datasets.load_dataset(hub.id, hub.name, split=hub.split, revision=hub.revision).to_list()
        else:
            stream = datasets.load_dataset(hub.id, hub.name, split=hub.split, revision=hub.revision, streaming=True)
            rows = list(stream.take(hub.rows))
    except Exception as error:  # of many libraries: network, authorisation, names, formats
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"workload.hub={hub.id!r} (split {hub.split!r}, revision {hub.revision!r}): cannot be loaded ({reason}); "
            f"allowed is a data set that can be reached, or workload.path=FILE ({', '.join(FORMATS)}, with the columns "
            f"{list(columns)}), or the embedded models, which need none"
        ) from None
    return list(enumerate(rows, 1))
