"""Transport of the user's source to worker processes: pickled once, with its large arrays mapped by
all of them.

One unnamed segment of memory holds everything, each array at a multiple of 64:

    position of the head | large arrays ... | pickle of the value | head

The head is the pickle of (what, position of the value's pickle, places of the arrays).

Functions and classes of `__main__` (`__mp_main__` in a process of multiprocessing) or of a notebook
are pickled by value, so a worker never imports the main module. An np.memmap is opened again by its
file name.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any, ClassVar

import cloudpickle
import numpy as np

from fastfeed.core.collate import ALIGN
from fastfeed.errors import OptionError
from fastfeed.producers.process.unpicklable import explain, text_of
from fastfeed.ring.memory import Segment, aligned

Array = np.ndarray[Any, Any]

LARGE_NBYTES = 64 * 1024  # from here on, mapping costs less than a copy in every worker
PROTOCOL = 5
MAIN = ("__main__", "__mp_main__")
# Stands in the pickle for an array that the pickler lays aside.
_HOLE = pickle.PickleBuffer(b"")


@dataclass
class Shipment:
    """A packed value. Every process with the descriptor can unpack it."""

    fd: int
    nbytes: int

    def close(self) -> None:
        """Close the descriptor; unpacked values stay valid."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def pack(value: Any, *, what: str, pickler: Callable[[], SourcePickler] | None = None) -> Shipment:
    """Pack `value` into memory of its own, with each large array once. Raise OptionError if a part
    of it cannot be pickled; the text names the part, the reason and the remedy. `what` names the
    value in such texts."""
    new = pickler or SourcePickler
    pickled = new()
    try:
        pickled.dump(value)
    except Exception as error:
        raise OptionError(
            explain(value, error, what=what, dump=lambda part: new().dump(part))
        ) from error
    places, start = _places(pickled.arrays)
    head = pickle.dumps((what, start, places))
    segment = Segment.create(start + sum(map(len, pickled.pieces)) + len(head), "fastfeed-source")
    try:
        segment.populate(0, segment.nbytes, write=True)
        for array, (position, _) in zip(pickled.arrays, places, strict=True):
            np.ndarray(array.shape, array.dtype, buffer=segment.map, offset=position)[...] = array
        for piece in (*pickled.pieces, head):
            segment.map[start : start + len(piece)] = piece
            start += len(piece)
        segment.map[:8] = (segment.nbytes - len(head)).to_bytes(8, "little")
    except BaseException:
        segment.close_fd()
        raise
    return Shipment(segment.fd, segment.nbytes)


def unpack(fd: int, nbytes: int) -> Any:
    """Return the value that was packed; the descriptor may be closed afterwards. Large arrays are
    read-only, because all workers share their memory. Raise OptionError if the value cannot be
    unpickled here."""
    return unpack_from(Segment(fd, nbytes, writable=False).map)


def unpack_from(memory: memoryview) -> Any:
    """Return the value that was packed into `memory`, which its large arrays keep alive."""
    end = int.from_bytes(memory[:8], "little")
    what, start, places = pickle.loads(memory[end:])
    try:
        return pickle.loads(
            memory[start:end], buffers=[memory[at : at + size] for at, size in places]
        )
    except Exception as error:
        raise OptionError(
            f"{what} cannot be unpickled in a worker process ({text_of(error)}). Functions and "
            "classes of the main module or of a notebook are sent by value; imported modules must "
            "be importable in a new process, too."
        ) from error


def by_value(pickler: Any, value: Any) -> Any:
    """Reduce a function or class of the main module, which a worker has not imported, for the
    processes that its code starts."""
    if isinstance(value, (FunctionType, type)) and value.__module__ in MAIN:
        return cloudpickle.loads, (cloudpickle.dumps(value),)
    return NotImplemented


def _places(arrays: Sequence[Array]) -> tuple[list[tuple[int, int]], int]:
    """Return position and size of every array, the same for arrays of the same memory, and the end
    of the last."""
    places: dict[Any, tuple[int, int]] = {}
    end = ALIGN
    layouts = [(array.ctypes.data, array.shape, array.strides, array.dtype.str) for array in arrays]
    for layout, array in zip(layouts, arrays, strict=True):
        if layout not in places:
            places[layout] = end, array.nbytes
            end += aligned(array.nbytes)
    return [places[layout] for layout in layouts], end


def _code_with_file(code: CodeType) -> tuple[Any, ...]:
    """Reduce a function's code with the name of its file, which cloudpickle leaves out since 3.1.3:
    a traceback of a worker shows the user's own line by it."""
    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _code_of_file, (code.co_filename, make, *arguments)


def _code_of_file(name: str, make: Any, *arguments: Any) -> CodeType:
    code: CodeType = make(*arguments)
    return code.replace(co_filename=name)


class SourcePickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no type information
    """Pickler that returns the pickle in pieces and leaves large arrays in place: it copies nothing
    large."""

    dispatch_table: ClassVar = ChainMap(
        {CodeType: _code_with_file}, cloudpickle.Pickler.dispatch_table
    )

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.arrays: list[Array] = []
        self._files: dict[int, _MappedFile] = {}
        if (main := sys.modules.get("__mp_main__")) is not None:
            cloudpickle.register_pickle_by_value(main)
        # Not a method: the cycle would keep the user's arrays until the next collection.
        super().__init__(
            SimpleNamespace(write=self.pieces.append), PROTOCOL, partial(_in_band, self.arrays)
        )

    def reducer_override(self, obj: Any) -> Any:
        plain = (
            type(obj) in (np.ndarray, np.memmap)
            and not obj.dtype.hasobject
            and obj.dtype.kind != "T"
        )
        if not plain or obj.nbytes < LARGE_NBYTES:
            return super().reducer_override(obj)
        file = self._file(obj)
        if file is None:
            # The hole comes first: pickling a dtype may need one too.
            return _array, (_HOLE, obj.shape, obj.dtype, *self._lay_aside(obj))
        layout = obj.shape, obj.dtype, obj.ctypes.data - file.address, obj.strides
        return (_memmap if isinstance(obj, np.memmap) else _array), (file, *layout)

    def _lay_aside(self, array: Array) -> tuple[Any, ...]:
        """Keep an array's bytes from the lowest to the highest address, or, if a view leaves some
        of them out, its values. Return where it begins and its strides, if they are its own."""
        reach = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
        below, span = -sum(r for r in reach if r < 0), array.itemsize + sum(map(abs, reach))
        if span > array.nbytes:
            self.arrays.append(array)
            return ()
        # Not every dtype can be viewed as bytes. The pickler keeps the array alive.
        memory = (ctypes.c_char * span).from_address(array.ctypes.data - below)
        self.arrays.append(np.frombuffer(memory, np.uint8))
        return below, array.strides

    def _file(self, array: Array) -> _MappedFile | None:
        """Return the file that `array` maps or is a view of, if a worker can open it again."""
        owner: Any = array
        while isinstance(owner, np.ndarray) and getattr(owner, "_mmap", None) is None:
            owner = owner.base
        if not isinstance(owner, np.memmap):
            return None
        file = _MappedFile(owner)
        return self._files.setdefault(file.address, file) if file.reopenable else None


def _in_band(arrays: list[Array], buffer: pickle.PickleBuffer) -> bool:
    """Return True if a buffer is small enough for the pickle; keep any other aside."""
    if buffer is _HOLE:
        return False
    raw = np.frombuffer(buffer.raw(), np.uint8)
    if raw.size < LARGE_NBYTES:
        return True
    arrays.append(raw)
    return False


class _MappedFile:
    """The mapped part of an np.memmap's file. It is pickled as the call that opens it again, once
    for all arrays in it."""

    def __init__(self, array: Any) -> None:
        mapped = np.frombuffer(array._mmap, np.uint8)
        self.address, self.nbytes = mapped.ctypes.data, mapped.size
        # numpy begins the map here
        self.start = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
        self.path, self.mode = array.filename, str(array.mode)

    @property
    def reopenable(self) -> bool:
        """True if the file has the content seen in memory: not with private changes (mode "c"), nor
        if deleted."""
        try:
            return self.mode != "c" and os.path.getsize(self.path) >= self.start + self.nbytes
        except (OSError, TypeError):  # deleted, or without a name
            return False

    def __reduce__(self) -> tuple[Any, ...]:
        return np.memmap, (self.path, np.uint8, "r", self.start, (self.nbytes,))


def _array(memory: Any, *layout: Any) -> Array:
    """Return an array in mapped memory (in the worker)."""
    shape, dtype, *where = layout
    return np.ndarray(shape, dtype, memory, *where)


def _memmap(file: Array, *layout: Any) -> Array:
    """Return the same as the np.memmap that it was (in the worker)."""
    array = _array(file, *layout).view(np.memmap)
    array.__array_finalize__(file)  # copies the name of the file
    return array
