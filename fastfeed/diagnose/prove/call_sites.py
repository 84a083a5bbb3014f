"""Hooks that note which lines of the user's make the loaders, datasets, threads and processes of a
run, and which loops they feed."""

from __future__ import annotations

import functools
import gc
import inspect
import multiprocessing
import sys
from collections import deque
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from fastfeed.core.user_code import is_users_code
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.imports import ImportHooks
from fastfeed.diagnose.hooks.patches import Undo, patch, undo_all
from fastfeed.diagnose.patches.call_site import CallSite
from fastfeed.steps.recorder import site_of

MADE = "_fastfeed_made"  # attribute of an object: the call that made it
# Classes whose instances feed a loop, or whose threads and processes may, by their module.
MADE_BY = {
    "torch.utils.data.dataloader": ("DataLoader", "__init__", "DataLoader"),
    "fastfeed.runner.runner": ("FeedRunner", "__init__", "FeedRunner"),
    "keras.src.trainers.data_adapters.py_dataset_adapter": ("PyDataset", "__init__", "PyDataset"),
    "threading": ("Thread", "start", "Thread"),
    "multiprocessing.process": ("BaseProcess", "start", "Process"),
    "multiprocessing.pool": ("Pool", "__init__", "Pool"),
    "concurrent.futures.thread": ("ThreadPoolExecutor", "__init__", "Pool"),
    "concurrent.futures.process": ("ProcessPoolExecutor", "__init__", "Pool"),
}
MOST_PARTS, MOST_EACH = 10_000, 200  # of a dataset, in which a random generator is looked for
LEAF_TYPES = (type, ModuleType, str, bytes, int, float, type(None))  # which hold none
ASKING = "worker_info"  # in a dataset's module: it asks which worker it is in
DATASETS = "tensorflow.python.data.ops.dataset_ops"
DATASET_CALLS = (
    *("from_generator", "map", "batch", "padded_batch", "interleave", "cache"),
    *("prefetch", "shuffle", "repeat"),
)
ADAPTERS = "keras.src.trainers.data_adapters"


class CallSites:
    """The calls that were seen, in order, from all threads."""

    def __init__(self) -> None:
        self.found: dict[CallSite, None] = {}

    def install(self, log: HookLog) -> ImportHooks:
        """Watch the imports of the script."""
        hooks = ImportHooks(log, ())
        for module in MADE_BY:
            hooks.add(module, self._made)
        hooks.add(DATASETS, self._datasets)
        hooks.add(ADAPTERS, self._fits)
        hooks.start()
        return hooks

    def note(self, name: str, frame: Any, **about: Any) -> CallSite | None:
        """Note a call of `name` by the nearest line of the user's; return it, None without one."""
        while frame is not None and not is_users_code(frame.f_code):
            frame = frame.f_back
        if frame is None:
            return None
        facts = tuple((key, str(value)) for key, value in about.items())
        site = CallSite(name, frame.f_code.co_filename, frame.f_lineno, "", facts)
        self.found.setdefault(site)
        return site

    def use(self, made: Any, frame: Any) -> None:
        """Note that a loop takes its batches from what a call made."""
        site = getattr(made, "__dict__", {}).get(MADE)
        if isinstance(site, CallSite):
            self.found.setdefault(site._replace(used_at=site_of(frame)))

    def _made(self, module: Any, log: HookLog) -> Undo:
        kind, method, name = MADE_BY[module.__name__]
        owner = getattr(module, kind)

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def call(self: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(self, *args, **kwargs)
                if MADE not in self.__dict__:
                    facts = loader_facts(self) if name == "DataLoader" else {}
                    self.__dict__[MADE] = sites.note(name, sys._getframe(1), **facts)
                return result

            return call

        def wrap_iter(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def __iter__(self: Any) -> Any:
                sites.use(self, sys._getframe(1))
                return original(self)

            return __iter__

        sites, undos = self, [patch(owner, method, wrap=wrap)]
        if "__iter__" in owner.__dict__:
            undos.append(patch(owner, "__iter__", wrap=wrap_iter))
        return undo_all(undos)

    def _datasets(self, module: Any, log: HookLog) -> Undo:
        owner, sites = module.DatasetV2, self

        def wrap(original: Any, name: str) -> Any:
            plain = original.__func__ if isinstance(original, staticmethod) else original

            @functools.wraps(plain)
            def call(*args: Any, **kwargs: Any) -> Any:
                result = plain(*args, **kwargs)
                result.__dict__[MADE] = sites.note(f"tf.data {name}", sys._getframe(1))
                return result

            return staticmethod(call) if isinstance(original, staticmethod) else call

        def wrap_iter(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def __iter__(self: Any) -> Any:
                for one in chain_of(self):
                    sites.use(one, sys._getframe(1))
                return original(self)

            return __iter__

        undos = [
            patch(owner, name, wrap=functools.partial(wrap, name=name))
            for name in DATASET_CALLS
            if name in owner.__dict__
        ]
        return undo_all([*undos, patch(owner, "__iter__", wrap=wrap_iter)])

    def _fits(self, module: Any, log: HookLog) -> Undo:
        """Note what Keras gets its batches from."""
        original = module.get_data_adapter

        @functools.wraps(original)
        def get_data_adapter(x: Any, *args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            indexed = hasattr(x, "__len__") and hasattr(x, "__getitem__")
            facts = {"x": type(x).__name__, "indexed": indexed}
            site = self.note("fit", frame, **facts)
            if site is not None:
                self.found.setdefault(site._replace(used_at=site_of(frame)))
            for one in chain_of(x):
                self.use(one, frame)
            return original(x, *args, **kwargs)

        module.get_data_adapter = get_data_adapter
        return lambda: setattr(module, "get_data_adapter", original)


def loader_facts(loader: Any) -> dict[str, Any]:
    """Return what is known of a DataLoader. `whole`: its dataset is an iterable, and each worker
    reads all of it, unless a function that `starts` workers shares it out. `draws`: its dataset has
    random generators of its own, of which each worker gets a copy that draws the same. `start`:
    how its workers start. `stream`: its dataset is an iterable."""
    data, iterable = loader.dataset, sys.modules["torch.utils.data"].IterableDataset
    kinds = [one for one in type(data).__mro__ if not one.__module__.startswith("torch.")]
    facts = {name: getattr(loader, name) for name in ("num_workers", "persistent_workers")}
    whole = isinstance(data, iterable) and not any(map(_asks_worker, kinds))
    starts = loader.worker_init_fn is not None
    draws = _holds_generator(data) or _holds_generator(loader.collate_fn)
    context = loader.multiprocessing_context or multiprocessing
    start = context.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    facts["stream"] = isinstance(data, iterable)
    return {**facts, "whole": whole, "starts": starts, "draws": draws, "start": start}


def _holds_generator(made: Any) -> bool:
    """Return True if an object, or a function of the user's that it may call, has a random
    generator of its own."""
    from fastfeed.producers.generators import GENERATOR_KINDS  # with NumPy: see digests.py

    known = (*GENERATOR_KINDS, sys.modules["torch"].Generator)
    try:
        return any(issubclass(type(one), known) for one in _parts_of(made))
    except Exception:  # of the user's objects
        return False


def _parts_of(made: Any) -> Iterator[Any]:
    """Yield an object, what it holds, and what the functions of its class name: MOST_PARTS at most,
    and MOST_EACH of one, which may be a list of all records."""
    todo, seen = deque([made]), set[int]()
    while todo and len(seen) < MOST_PARTS:
        one = todo.popleft()
        if id(one) in seen or isinstance(one, LEAF_TYPES):
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, FunctionType):
            named = (one.__globals__.get(name) for name in one.__code__.co_names)
            parts = [*named, *(one.__closure__ or ())] if is_users_code(one.__code__) else []
        else:
            kinds = [kind for kind in type(one).__mro__ if kind is not object]
            parts = [*gc.get_referents(one)[:MOST_EACH]]
            parts += [of for kind in kinds for of in vars(kind).values() if callable(of)]
        todo.extend(parts)


def _asks_worker(kind: type) -> bool:
    try:
        return ASKING in inspect.getsource(sys.modules[kind.__module__])
    except (OSError, TypeError, KeyError):
        return False  # such as a builtin


def chain_of(made: Any) -> Iterator[Any]:
    """Yield an object, and the datasets that it is made of."""
    yield made
    inputs = getattr(made, "_inputs", None)
    for one in inputs() if callable(inputs) else ():
        yield from chain_of(one)
