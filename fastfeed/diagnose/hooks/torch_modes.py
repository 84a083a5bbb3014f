"""Hook of `model.eval()` and `model.train()`, between which an evaluation runs, and of the steps of
optimizers."""

from __future__ import annotations

import functools
import sys
import threading
import time
from typing import Any
from weakref import WeakKeyDictionary

from fastfeed.core.user_code import is_users_code
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.patches import MIN_MARK_S, Undo, calling_frames, patch, undo_all
from fastfeed.steps.timeline import Mark

MODULES = ("torch.optim.optimizer",)
SEEN_CALLS = 500  # calls of models and their parts from which the lines of the step are taken


def install(module: Any, log: HookLog) -> Undo:
    """Observe the modes of models, and the steps of optimizers: who steps does not evaluate."""
    modes = _Modes(log)
    kind = sys.modules["torch.nn.modules.module"].Module
    handle = module.register_optimizer_step_post_hook(modes.end_all)
    return undo_all([patch(kind, "train", wrap=modes.wrap_train), handle.remove, modes.remove])


class _Modes:
    """Models that evaluate, each with the time and the place at which its evaluation began."""

    def __init__(self, log: HookLog) -> None:
        self._log = log
        self._begun: WeakKeyDictionary[Any, tuple[float, str]] = WeakKeyDictionary()
        self._inside = threading.local()  # a model sets the modes of its parts
        self._calls = 0  # of models that were looked at
        self._forward: Any = None  # the hook of their calls, while it is installed

    def end_all(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """A model is trained, in whatever mode the models are."""
        self._begun.clear()
        if self._log.active:
            self._log.add_beat(id(optimizer), _users_lines)
            if not self._calls:  # a few iterations tell it; the hook costs some microseconds a call
                self._calls = 1
                modules = sys.modules["torch.nn.modules.module"]
                self._forward = modules.register_module_forward_hook(self._see_call)

    def remove(self) -> None:
        """Look at no call any more."""
        if self._forward is not None:
            self._forward.remove()

    def _see_call(self, *call: Any) -> None:
        """Note the lines of the user's that call a model whose results are trained: `call` is the
        model, its inputs and its output."""
        self._calls += 1
        if self._calls > SEEN_CALLS or not self._log.active:
            self.remove()
            return
        try:
            if _is_trained(call[2]):
                self._log.step_lines |= set(_users_lines())
        except Exception as error:  # an output of the user's own kind
            self._log.failed("the lines of a step", error)

    def wrap_train(self, original: Any) -> Any:
        """Wrap the call that sets the mode."""

        @functools.wraps(original)
        def train(model: Any, mode: bool = True) -> Any:
            if getattr(self._inside, "model", False) or not self._log.active:
                return original(model, mode)
            self._inside.model = True
            try:
                self._set(model, training=mode)
                return original(model, mode)
            finally:
                self._inside.model = False

        return train

    def _set(self, model: Any, *, training: bool) -> None:
        now_s = time.perf_counter()
        try:
            if not training:
                self._begun.setdefault(model, (now_s, _caller()))
                return
            begin_s, label = self._begun.pop(model, (now_s, ""))
        except Exception as error:  # a model without a hash
            return self._log.failed("the mode of a model", error)
        if now_s - begin_s > MIN_MARK_S:
            self._log.add_mark(Mark("evaluation", begin_s, now_s, label))


def _users_lines() -> tuple[tuple[str, int], ...]:
    """Return the files and lines of the user's on the stack, the innermost first."""
    frames = (one for one in calling_frames() if is_users_code(one.f_code))
    return tuple((one.f_code.co_filename, one.f_lineno) for one in frames)


def _is_trained(output: Any) -> bool:
    """Return True if gradients can flow back from what a model returned."""
    parts: Any = output if isinstance(output, (tuple, list)) else [output]
    parts = output.values() if isinstance(output, dict) else parts
    return any(getattr(one, "requires_grad", False) is True for one in parts)


def evaluated_in(function: str) -> str:
    """Return the label of evaluations in a function of the user's."""
    return f"evaluation in `{function}`"


def _caller() -> str:
    """Return the label of the user's function that sets the mode, or ""."""
    frame: Any = sys._getframe(1)
    while frame is not None and not is_users_code(frame.f_code):
        frame = frame.f_back
    return evaluated_in(frame.f_code.co_name) if frame is not None else ""
