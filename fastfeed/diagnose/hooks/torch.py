"""Hook of every `torch.utils.data.DataLoader` that is iterated over."""

from __future__ import annotations

import functools
import weakref
from typing import Any

from fastfeed.core.stats import StageRow
from fastfeed.core.status import MAKING, PROCESS, ProducerStatus
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.patches import CallTimer, Undo, patch, recorder_of, undo_all
from fastfeed.steps.recorder import BatchSource, StepRecorder

MODULES = ("torch.utils.data.dataloader",)


def install(module: Any, log: HookLog) -> Undo:
    """Patch `__next__` of the loader's iterators, whose type does not change, and time the start of
    their workers."""
    kind = module._BaseDataLoaderIter
    undo_next = patch(kind, "__next__", wrap=lambda original: _wrap_next(original, log))
    timer = CallTimer(log)
    undo_start = timer.method(module.DataLoader, "__iter__", kind="start", label="DataLoader")
    return undo_all([undo_next, undo_start])


def _wrap_next(original: Any, log: HookLog) -> Any:
    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        steps = recorder_of(self, log, create=_recorder)
        return original(self) if steps is None else steps.take(functools.partial(original, self))

    return __next__


def _recorder(iterator: Any, log: HookLog) -> StepRecorder:
    try:
        workers = iterator._num_workers
        buffer = workers * iterator._prefetch_factor if workers else 0
    except Exception as error:  # another version, or a custom iterator
        log.failed("what a DataLoader makes ahead", error)
        return StepRecorder(log, "torch", name="DataLoader", buffer=None, ahead=False)
    source = BatchSource(
        id(iterator._dataset),
        reuses_memory=not workers,  # a worker process delivers new memory
        idle=functools.partial(_is_idle, weakref.ref(iterator)),
        producers=functools.partial(_workers, weakref.ref(iterator)) if workers else None,
    )
    name = f"DataLoader(num_workers={workers})"
    return StepRecorder(log, "torch", name=name, buffer=buffer, source=source)


def _workers(ref: weakref.ref[Any]) -> list[ProducerStatus]:
    """Return the worker processes of an iterator."""
    try:
        pids = [worker.pid for worker in getattr(ref(), "_workers", ())]
    except Exception:  # another version, for which they are unknown
        return []
    return [
        ProducerStatus(*(PROCESS, MAKING, number, pid, pid, number, -1, -1, StageRow(), ""))
        for number, pid in enumerate(pids)
    ]


def _is_idle(ref: weakref.ref[Any]) -> bool:
    """Return True if the workers have made all batches that were requested."""
    iterator = ref()
    try:
        return iterator is None or iterator._data_queue.qsize() >= iterator._tasks_outstanding
    except Exception:  # another version, for which this is unknown
        return True
