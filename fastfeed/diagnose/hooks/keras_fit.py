"""Hook of Keras on each of its backends: steps of `fit`, calls for single batches, epochs,
evaluations and callbacks."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.keras_many import MultiStepRecorder
from fastfeed.diagnose.hooks.keras_steps import PythonRecorder, TensorFlowRecorder, TrainFunction
from fastfeed.diagnose.hooks.patches import CallTimer, Undo, patch, undo_all
from fastfeed.steps.recorder import leaves, site_of
from fastfeed.steps.timeline import Loop, Mark, Step

MODULES = ("keras",)
TRAINERS = {"tensorflow": "TensorFlowTrainer", "torch": "TorchTrainer", "jax": "JAXTrainer"}
TIMED_CALLBACKS = ("on_epoch_begin", "on_epoch_end", "on_train_begin")
# asynchronous work of other backends than TensorFlow may end in them
BATCH_CALLBACKS = ("on_train_batch_begin", "on_train_batch_end")
HOOKED = "_fastfeed_hooked"  # attribute of a train function that is hooked


class BatchRequest(threading.local):
    """The last request of a thread to Keras's iterator.

    `single`: the thread is in a call for one batch. `steps`: the recorder of the step under way.
    """

    begin_s: float = 0.0
    wait_s: float = 0.0
    single: bool = False
    steps: PythonRecorder | None = None

    def begin(self) -> float:
        """Begin a request; return its time."""
        self.begin_s = time.perf_counter()
        return self.begin_s

    def end(self) -> None:
        """End the request."""
        self.wait_s = time.perf_counter() - self.begin_s

    def use(self, steps: PythonRecorder) -> float:
        """Give the batch to a step of this recorder; return the time of its request."""
        begin_s, self.begin_s, self.steps = self.begin_s, 0.0, steps
        return begin_s

    def close_step(self) -> None:
        """End the step under way, if there is one."""
        if self.steps is not None:
            self.steps.close(time.perf_counter())
            self.steps = None

    def call_single(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call for one batch."""
        self.single = True
        try:
            return call()
        finally:
            self.single = False


def install(module: Any, log: HookLog) -> Undo:
    """Observe every model of the process."""
    request = BatchRequest()
    timer = CallTimer(log)
    undos: list[Undo] = []
    for backend, name in TRAINERS.items():
        trainer = getattr(sys.modules.get(f"keras.src.backend.{backend}.trainer"), name, None)
        if trainer is not None:
            wrap = functools.partial(_wrap_make, backend=backend, request=request, log=log)
            single = functools.partial(_wrap_train_on_batch, request=request, log=log)
            undos += [
                patch(trainer, "make_train_function", wrap=wrap),
                patch(trainer, "train_on_batch", wrap=single),
                timer.method(trainer, "predict", kind="evaluation", label="predict"),
            ]
    iterator = sys.modules["keras.src.trainers.epoch_iterator"].EpochIterator
    new = "__next__" in vars(iterator)  # not in Keras before 3.7
    name, wrapper = ("__next__", _wrap_next) if new else ("enumerate_epoch", _wrap_enumerate)
    undos.append(patch(iterator, name, wrap=functools.partial(wrapper, request=request, log=log)))
    return undo_all(undos + _hook_callbacks(request, log))


def _hook_callbacks(request: BatchRequest, log: HookLog) -> list[Undo]:
    callbacks = sys.modules["keras.src.callbacks.callback_list"].CallbackList
    model = sys.modules["keras.src.models.model"].Model
    timer = CallTimer(log)
    saves = ("save", "save_weights")
    on_tensorflow = sys.modules["keras"].backend.backend() == "tensorflow"
    timed = TIMED_CALLBACKS + BATCH_CALLBACKS if on_tensorflow else TIMED_CALLBACKS
    tests_s: dict[int, float] = {}  # start of each evaluation
    wrappers = (
        ("on_test_begin", functools.partial(_wrap_last, request=request)),
        ("on_epoch_end", functools.partial(_wrap_last, request=request)),
        ("on_epoch_begin", functools.partial(_wrap_epoch, log=log)),
        ("on_test_begin", functools.partial(_wrap_test_begin, starts_s=tests_s, log=log)),
        ("on_test_end", functools.partial(_wrap_test_end, starts_s=tests_s, log=log)),
    )
    return [
        *(timer.method(model, name, kind="checkpoint", label=name) for name in saves),
        *(timer.method(callbacks, name, kind="callback", label=name) for name in timed),
        *(patch(callbacks, name, wrap=wrap) for name, wrap in wrappers),
    ]


def _wrap_last(original: Any, request: BatchRequest) -> Any:
    """Wrap a callback at the end of an epoch's steps, which ends the last one."""

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        request.close_step()
        return original(self, *args, **kwargs)

    return call


def _wrap_epoch(original: Any, log: HookLog) -> Any:
    @functools.wraps(original)
    def on_epoch_begin(self: Any, epoch: Any, *args: Any, **kwargs: Any) -> Any:
        if log.active:
            now_s = time.perf_counter()
            log.add_mark(Mark("epoch", now_s, now_s, str(epoch)))
        return original(self, epoch, *args, **kwargs)

    return on_epoch_begin


def _wrap_test_begin(original: Any, *, starts_s: dict[int, float], log: HookLog) -> Any:
    @functools.wraps(original)
    def on_test_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        if log.active:
            starts_s[id(self)] = time.perf_counter()
        return original(self, *args, **kwargs)

    return on_test_begin


def _wrap_test_end(original: Any, *, starts_s: dict[int, float], log: HookLog) -> Any:
    @functools.wraps(original)
    def on_test_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        finally:
            start_s = starts_s.pop(id(self), None)
            if start_s is not None:
                log.add_mark(Mark("evaluation", start_s, time.perf_counter()))

    return on_test_end


def _wrap_next(original: Any, *, request: BatchRequest, log: HookLog) -> Any:
    """Wrap the iterator of a backend that gets its batches from Python."""

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        if not log.active:
            return original(self)
        log.begin_wait(request.begin())
        try:
            return original(self)
        finally:
            log.end_wait()
            request.end()

    return __next__


def _wrap_enumerate(original: Any, *, request: BatchRequest, log: HookLog) -> Any:
    """Wrap the generator that Keras before 3.7 has in place of the iterator."""
    take = _wrap_next(next, request=request, log=log)

    @functools.wraps(original)
    def enumerate_epoch(self: Any) -> Any:
        yield from iter(functools.partial(take, original(self)), None)

    return enumerate_epoch


def _wrap_make(original: Any, *, backend: str, request: BatchRequest, log: HookLog) -> Any:
    """Wrap `make_train_function`, which then makes a function whose calls are recorded."""
    wrap = {"tensorflow": _wrap_tensorflow, "jax": _wrap_jax, "torch": _wrap_torch}[backend]

    @functools.wraps(original)
    def make_train_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        try:
            function = self.train_function
            if log.active and not hasattr(function, HOOKED):
                hooked = wrap(function, TrainFunction(self), request=request, log=log)
                setattr(hooked, HOOKED, True)
                self.train_function = hooked
        except Exception as error:
            log.failed("Keras's steps", error)
        return result

    return make_train_function


def _wrap_tensorflow(
    original: Any, train: TrainFunction, *, request: BatchRequest, log: HookLog
) -> Any:
    recorder = MultiStepRecorder if train.steps > 1 else TensorFlowRecorder
    steps = recorder(train, log)

    def function(iterator: Any) -> Any:
        return original(iterator) if request.single else steps.call(original, iterator)

    return function


def _wrap_torch(original: Any, train: TrainFunction, *, request: BatchRequest, log: HookLog) -> Any:
    steps = PythonRecorder(train, log)

    def function(data: Any) -> Any:
        return _call_with_batch(original, data, request=request, steps=steps)

    return function


def _call_with_batch(
    original: Any, data: Any, *, request: BatchRequest, steps: PythonRecorder
) -> Any:
    """Call a train function with the batch that was just requested."""
    if request.single or not steps.log.active or not request.begin_s:
        return original(data)
    return steps.call(original, data, begin_s=request.use(steps), wait_s=request.wait_s)


def _wrap_jax(original: Any, train: TrainFunction, *, request: BatchRequest, log: HookLog) -> Any:
    steps = PythonRecorder(train, log)

    def function(state: Any, iterator: Any) -> Any:
        if isinstance(iterator, list):  # Keras before 3.7 has taken the batches itself
            call = functools.partial(original, state)
            return _call_with_batch(call, iterator, request=request, steps=steps)
        if request.single or not log.active:
            return original(state, iterator)
        request.use(steps)
        return steps.call_with_iterator(original, state, iterator=iterator)

    return function


def _wrap_train_on_batch(original: Any, *, request: BatchRequest, log: HookLog) -> Any:
    """Wrap a call for one batch, which its caller made beforehand."""

    @functools.wraps(original)
    def train_on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not log.active or request.single:
            return original(self, *args, **kwargs)
        begin_s = time.perf_counter()
        result = request.call_single(lambda: original(self, *args, **kwargs))
        step = Step(begin_s, time.perf_counter(), 0.0)
        try:
            key = ("keras call", id(self), threading.get_ident())
            loop = log.find_loop(key, lambda: _single_batch_loop(self, args, kwargs=kwargs))
            if loop is not None:
                log.add_step(loop, step)
        except Exception as error:
            log.failed("train_on_batch", error)
        return result

    return train_on_batch


def _single_batch_loop(model: Any, args: tuple[Any, ...], *, kwargs: dict[str, Any]) -> Loop:
    """Return the loop of the calls for single batches."""
    arrays = (*args[:2], *(kwargs[name] for name in ("x", "y") if name in kwargs))
    return Loop(
        f"{getattr(model, 'name', type(model).__name__)}.train_on_batch",
        "call",
        threading.get_ident(),
        waits="none",
        where=site_of(sys._getframe(1)),
        buffer=0,
        leaves=leaves(arrays),
    )
