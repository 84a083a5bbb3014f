"""Datasets of h5py, which worker processes open again."""

from __future__ import annotations

from typing import Any

from fastfeed.errors import OptionError


def in_file(leaf: Any) -> Any:
    """Return an array in a file as one that can be sent to a worker process."""
    return HdfDataset(leaf) if type(leaf).__module__.startswith("h5py.") else leaf


class HdfDataset:
    """A dataset of h5py. It is pickled as the name of its file and its name there."""

    def __init__(self, dataset: Any) -> None:
        self._stored = dataset
        self.shape, self.dtype = dataset.shape, dataset.dtype

    def __getitem__(self, index: Any) -> Any:
        return self._stored[index]

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened_again, (self._stored.file.filename, self._stored.name)


def _opened_again(path: str, name: str) -> HdfDataset:
    import h5py

    try:
        return HdfDataset(h5py.File(path, "r")[name])
    except OSError as error:
        raise OptionError(
            f"the HDF5 file {path} cannot be opened in a worker process ({error}): open it for "
            'reading only, h5py.File(path, "r"), or use threads='
        ) from error
