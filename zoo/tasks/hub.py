"""Rows of a data set on the Hugging Face hub."""

from __future__ import annotations

import msgspec

from tokenrouter.core import InputError
from zoo.tasks.rows import FORMATS, Columns, Numbered

_PROBE_S = 5.0


class HubSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A data set: `name` is its configuration, `fingerprint` what its rows must hash to (null: anything)."""

    id: str
    split: str
    name: str | None = None
    revision: str = "main"
    fingerprint: str | None = None


def read_hub(hub: HubSet, columns: Columns) -> Numbered:
    """The rows of a split, from the hub or, with HF_HUB_OFFLINE=1, its local cache. InputError if they are not to be
    had, after one attempt."""
    import datasets
    from huggingface_hub import HfApi, constants

    try:
        if not constants.HF_HUB_OFFLINE:  # load_dataset alone would try for half a minute
            HfApi().dataset_info(hub.id, revision=hub.revision, timeout=_PROBE_S)
        rows = datasets.load_dataset(hub.id, hub.name, split=hub.split, revision=hub.revision)
    except Exception as error:  # of many libraries: network, authorisation, names, formats
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"workload.hub={hub.id!r} (split {hub.split!r}, revision {hub.revision!r}): cannot be loaded ({reason}); "
            f"allowed is a data set that can be reached, or workload.path=FILE ({', '.join(FORMATS)}, with the columns "
            f"{columns.names()}), or the embedded models, which need none"
        ) from None
    return list(enumerate(rows.to_list(), 1))
