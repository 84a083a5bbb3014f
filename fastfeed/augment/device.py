"""Arrays on a GPU, as leaves of a batch: for frameworks by DLPack, for numpy as a copy on the
host."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastfeed.core.batch import Batch


class DeviceArray:
    """An array on a GPU.

    `torch.from_dlpack`, `jax.dlpack.from_dlpack` and `tf.experimental.dlpack` take it without a
    copy; `numpy.asarray` copies it to the host. Its memory lives as long as the array, or anything
    made from it.
    """

    def __init__(self, tensor: Any, shape: tuple[int, ...], *, dtype: np.dtype[Any]) -> None:
        self._tensor = tensor  # of DALI: has __dlpack__ and as_cpu()
        self.shape = shape
        self.dtype = dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        host = np.asarray(self._tensor.as_cpu())
        return host if dtype is None else host.astype(dtype)


def on_device(leaf: Any) -> bool:
    """Return True if a leaf is on a GPU."""
    return isinstance(leaf, DeviceArray)


def on_host(batch: Batch) -> Batch:
    """Return the batch with every leaf on the host; those on a device are copied."""
    if not any(map(on_device, batch.leaves)):
        return batch
    return Batch(tuple(map(np.asarray, batch.leaves)), batch.rows, batch.nbytes)
