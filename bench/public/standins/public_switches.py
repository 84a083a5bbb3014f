"""Switches of a variant, by framework: steps are counted, the input of the training is ready, work
between epochs is left out, a knob is turned."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import tally


def changes(settings: dict[str, Any]) -> list[tuple[str, Callable[[Any], None]]]:
    """Return pairs of a module and the function that changes it."""
    tally.start(settings)
    on = set(settings["switches"])
    found: list[tuple[str, Callable[[Any], None]]] = []
    if settings["count"] == "torch":
        found.append(("torch.optim.optimizer", _count_optimizer))
    if settings["count"] == "session":
        found.append(("tensorflow.python.client.session", _count_session))
    if settings["count"] == "keras":
        for name in ("keras.src.backend.tensorflow.trainer", "tf_keras.src.engine.training"):
            found.append((name, functools.partial(_count_keras, ready="keras.ready" in on)))
    if "keras.quiet" in on:
        found.append(("keras.src.backend.tensorflow.trainer", _quiet_keras))
    if "session.quiet" in on:
        found.append(("tensorflow.python.client.session", _quiet_session))
    if "torch.ready" in on:
        found.append(("torch.utils.data.dataloader", _ready_loader))
    for switch in on:
        if switch.startswith("torch.workers="):
            workers = int(switch.partition("=")[2])
            found.append(
                ("torch.utils.data.dataloader", functools.partial(_workers, workers=workers))
            )
        if switch.startswith("keras.many="):
            many = int(switch.partition("=")[2])
            found.append(("keras.src.trainers.trainer", functools.partial(_many, many=many)))
    return found


def _count_optimizer(module: Any) -> None:
    module.register_optimizer_step_post_hook(tally.tick)


def _has_operation(fetches: Any) -> bool:
    """Return True if a train op is among the fetches; what is only computed is a tensor."""
    if isinstance(fetches, dict):
        return any(_has_operation(one) for one in fetches.values())
    if isinstance(fetches, (list, tuple)):
        return any(_has_operation(one) for one in fetches)
    return type(fetches).__name__ == "Operation"


def _count_session(module: Any) -> None:
    run = module.BaseSession.run

    def counted(self: Any, fetches: Any, *given: Any, **named: Any) -> Any:
        found = run(self, fetches, *given, **named)
        if _has_operation(fetches):
            tally.tick()
        return found

    module.BaseSession.run = counted


def _quiet_session(module: Any) -> None:
    """Answer what computes no step with its first answer."""
    run, answers = module.BaseSession.run, {}

    def quiet(self: Any, fetches: Any, *given: Any, **named: Any) -> Any:
        if _has_operation(fetches):
            return run(self, fetches, *given, **named)
        key = str(fetches)
        if key not in answers:
            answers[key] = run(self, fetches, *given, **named)
        return answers[key]

    module.BaseSession.run = quiet


def _count_keras(module: Any, *, ready: bool) -> None:
    kind = getattr(module, "TensorFlowTrainer", None) or module.Model
    make = kind.make_train_function

    def counted(self: Any, force: bool = False) -> Any:
        before = self.train_function
        found = make(self, force)
        if self.train_function is before and not force:
            return found
        train = self.train_function
        batches: list[Any] = []

        def step(iterator: Any) -> Any:
            if ready:
                if not batches:
                    batches.append(_repeated(next(iterator)))
                iterator = batches[0]
            logs = train(iterator)
            for _ in range(int(getattr(self, "steps_per_execution", 1) or 1)):
                tally.tick()
            return logs

        self.train_function = step
        return found

    kind.make_train_function = counted


def _repeated(batch: Any) -> Any:
    import tensorflow as tf

    if not all(tf.is_tensor(one) for one in tf.nest.flatten(batch)):
        return itertools.repeat(batch)  # train_on_batch
    return iter(tf.data.Dataset.from_tensors(batch).repeat())


def _quiet_keras(module: Any) -> None:
    kind = module.TensorFlowTrainer
    fit = kind.fit

    def quiet(self: Any, *given: Any, **named: Any) -> Any:
        named.pop("validation_data", None)
        named.pop("callbacks", None)
        return fit(self, *given, **named)

    kind.fit = quiet


def _many(module: Any, *, many: int) -> None:
    make = module.Trainer.compile

    def compiled(self: Any, *given: Any, **named: Any) -> Any:
        return make(self, *given, **{**named, "steps_per_execution": many})

    module.Trainer.compile = compiled


def _ready_loader(module: Any) -> None:
    """Let the first loader that is iterated over repeat two batches."""
    make = module.DataLoader.__iter__
    found: dict[str, Any] = {}

    def __iter__(self: Any) -> Any:
        data = found.setdefault("data", self.dataset)
        if data is not self.dataset:
            return make(self)
        if "batches" not in found:
            batches = make(self)
            found["batches"] = [next(batches), next(batches)]
        try:
            length = len(self)
        except TypeError:
            length = 10**9
        return itertools.islice(itertools.cycle(found["batches"]), length)

    module.DataLoader.__iter__ = __iter__


def _workers(module: Any, *, workers: int) -> None:
    """Give the loader of the training worker processes, if it shuffles or is the first."""
    make = module.DataLoader.__init__
    seen: list[Any] = []

    def __init__(self: Any, dataset: Any, *given: Any, **named: Any) -> None:
        if named.get("shuffle") or named.get("sampler") is not None or not seen:
            named.update(num_workers=workers, persistent_workers=workers > 0)
        seen.append(1)
        make(self, dataset, *given, **named)

    module.DataLoader.__init__ = __init__
