"""Description of the input of Keras's `fit`, from the data adapter that Keras has chosen."""

from __future__ import annotations

from typing import Any, NamedTuple

from fastfeed.steps.recorder import leaves
from fastfeed.steps.timeline import ARRAYS_NOTE, Leaf


class LoaderFacts(NamedTuple):
    """Description of a loop's input, as in `Loop`."""

    leaves: tuple[Leaf, ...] = ()
    buffer: int | None = None
    note: str = ""


def loader_facts(adapter: Any) -> LoaderFacts:
    """Return the facts about a data adapter of Keras."""
    kind = type(adapter).__name__
    if kind == "GeneratorDataAdapter":
        first = getattr(adapter, "_first_batches", None) or [None]
        return LoaderFacts(leaves(first[0]), *_generator(adapter))
    if kind == "PyDatasetAdapter":
        specs = leaves(adapter._output_signature)
        return LoaderFacts(specs, *_pydataset(adapter.py_dataset))
    if kind == "TFDatasetAdapter":
        return dataset_facts(adapter._dataset)
    if kind == "ArrayDataAdapter":
        return LoaderFacts(note=ARRAYS_NOTE)
    if kind == "TorchDataLoaderAdapter":
        loader = adapter._dataloader
        ahead = loader.num_workers * (loader.prefetch_factor or 0)
        return LoaderFacts((), ahead, f"a torch DataLoader, num_workers={loader.num_workers}")
    return LoaderFacts()


def dataset_facts(dataset: Any) -> LoaderFacts:
    """Return the facts about a dataset of tf.data, which may be None."""
    if dataset is None:
        return LoaderFacts()
    return LoaderFacts(leaves(dataset.element_spec), *_pipeline(dataset))


def _pipeline(dataset: Any) -> tuple[int | None, str]:
    """Return the maximum number of elements that a dataset makes ahead, and a note.

    The note names its transformations, the last one first.
    """
    names = []
    todo = [dataset]
    ahead: int | None = 0
    while todo:
        one = todo.pop()
        name = type(one).__name__.strip("_").removesuffix("Dataset")
        names.append(name)
        if name in ("Prefetch", "ParallelMap", "ParallelInterleave", "MapAndBatch"):
            ahead = None
        todo.extend(one._inputs())
    if names and names[0] == "Prefetch":
        size = dataset._buffer_size
        ahead = int(size) if hasattr(size, "numpy") and int(size) > 0 else None
    elif ahead == 0 and dataset.options().experimental_optimization.inject_prefetch is not False:
        ahead = None  # a prefetch is added at the end
    return ahead, "tf.data: " + " < ".join(names)


def _generator(adapter: Any) -> tuple[int | None, str]:
    if adapter._output_signature is not None:  # it is turned into a dataset
        return (
            None,
            "a generator, run by a thread of tf.data ahead of the step (from_generator, prefetch)",
        )
    return 0, "a generator, run by the thread that trains"


def _pydataset(dataset: Any) -> tuple[int | None, str]:
    workers = int(dataset.workers)
    if workers > 1 or (workers > 0 and dataset.use_multiprocessing):
        kind = "processes" if dataset.use_multiprocessing else "threads"
        note = f"PyDataset: workers={workers} ({kind}), max_queue_size={dataset.max_queue_size}"
        return int(dataset.max_queue_size), note
    return None, f"PyDataset: workers={workers}, one thread makes every batch"
