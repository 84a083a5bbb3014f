"""Changes of a pipeline of tf.data, and of what Keras fits."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from fastfeed.diagnose.diagnosis import Recommendation
from fastfeed.diagnose.patches.drawn_seed import drawn_seed
from fastfeed.diagnose.patches.epochs import is_left_early
from fastfeed.diagnose.patches.names import functions_of
from fastfeed.diagnose.patches.proposal import ALIKE, ALONE, PatchCase, Proposal, imported_by
from fastfeed.diagnose.patches.source_file import Edit, SourceFile
from fastfeed.diagnose.proof import WORDS

# Input in memory; a generator, which runs in a thread by now.
NEEDS_NONE = ("ndarray", "EagerTensor", "Tensor", "list", "tuple", "dict", "generator")


class ParallelMaps:
    """Maps in parallel, and a prefetch at the end."""

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        edits, names, last = [], [], ""
        for _, file, call in case.sites("tf.data map", "tf.data interleave"):
            known = {one.arg for one in call.keywords}
            if isinstance(call.func, ast.Attribute) and "num_parallel_calls" not in known:
                edits.append(file.with_keyword(call, "num_parallel_calls", value=_autotune(file)))
                names = ["num_parallel_calls"]
        found = list(case.sites(*(f"tf.data {name}" for name in ENDS)))
        if found and found[0][0].name != "tf.data prefetch":
            _, file, call = found[0]  # the last of the chain comes first
            end, last = file.span(call)[1], f".prefetch({_autotune(file)})"
            edits.append(Edit(file.name, end, end, last))
        if edits:
            title = " and ".join([*names, *(["prefetch"] if last else [])])
            yield Proposal(f"tf.data: {title}", tuple(edits), case.advice("num_parallel_calls"))


ENDS = ("batch", "padded_batch", "map", "repeat", "shuffle", "prefetch", "cache")


class CacheAfterMap:
    """A cache behind the maps that it stands before."""

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        found = list(case.sites("tf.data cache", "tf.data map", "tf.data shuffle"))
        names = [site.name for site, _, _ in found]
        if "tf.data cache" not in names[1:]:
            return
        (_, file, cache), maps = (
            found[names.index("tf.data cache")],
            found[: names.index("tf.data cache")],
        )
        if "tf.data shuffle" in [site.name for site, _, _ in maps]:
            return  # it would be the same order in each epoch
        _, other, mapped = maps[0]
        if other is not file or not isinstance(cache.func, ast.Attribute):
            return
        begin, end = file.span(cache.func.value)[1], file.span(cache)[1]
        after = file.span(mapped)[1]
        edits = (
            Edit(file.name, begin, end, ""),
            Edit(file.name, after, after, file.text[begin:end].strip()),
        )
        yield Proposal(
            "tf.data: cache what the maps make", edits, case.advice("cache"), freezes=True
        )


class GeneratorDataset:
    """A FeedRunner in place of from_generator."""

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        for _, file, call in case.sites("tf.data from_generator"):
            maker = call.args[0] if call.args else None
            if (
                maker is None
                or is_left_early(case)
                or any(one.arg == "args" for one in call.keywords)
            ):
                continue
            source = file.source(maker)
            functions = functions_of(file, maker)
            told = any(case.is_told(file, by=one) for one in functions)
            body = [part for one in functions for part in one.body]
            for words, advice in producer_words(case, copies=False, told=told):
                seed = drawn_seed(case, file, body=body, options=words)
                edit = file.replaced(call, f"FeedRunner({source}, {words}{seed}).dataset()")
                title = f"FeedRunner(..., {words}).dataset() in place of from_generator"
                allows = ALIKE if words == ALONE else WORDS[:-1]
                edits = (*case.runner_import(file), edit)
                yield Proposal(title, edits, advice, makes=True, allows=allows)


class FittedInput:
    """More workers of what Keras fits, or a FeedRunner around it."""

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        for site, file, call in case.sites("fit"):
            given = call.args[0] if call.args else None
            given = next(
                (one.value for one in call.keywords if one.arg in ("x", "generator")), given
            )
            kind = site.fact("x")
            if given is None or kind in NEEDS_NONE or "Dataset" in kind:
                continue
            yield from self._workers(case, file, given=given, call=call)
            order = next((one.value for one in call.keywords if one.arg == "shuffle"), None)
            mixed = file.source(order) if order is not None else "True"  # as fit does
            indexed = site.fact("indexed") == "True"
            options = "records=False, " + f"shuffle={mixed}, " * indexed
            yield from self._runner(case, file, given=given, options=options, copies=indexed)

    def _workers(
        self, case: PatchCase, file: SourceFile, *, given: ast.expr, call: ast.Call
    ) -> Iterator[Proposal]:
        if not isinstance(given, (ast.Name, ast.Attribute)):
            return
        advice = case.advice("processes", "threads")
        count, name = case.count(advice), file.source(given)
        held = advice is not None and advice.knob == "processes"
        lines = [f"{name}.workers = {count}"] + [f"{name}.use_multiprocessing = True"] * held
        edit = file.inserted(file.statement_of(call), lines)
        if edit is not None:
            yield Proposal("; ".join(lines), (edit,), advice, makes=True)

    def _runner(
        self, case: PatchCase, file: SourceFile, *, given: ast.expr, options: str, copies: bool
    ) -> Iterator[Proposal]:
        source = file.source(given)
        sink = keras_sink(file)
        for words, advice in producer_words(case, copies=copies):
            made = f"lambda: {source}" if isinstance(given, ast.Call) else source
            draws = "processes=" in words or "shuffle=True" in options
            seed = drawn_seed(case, file, body=None, options=words) if draws else ""
            forms = [f"FeedRunner({one}, {options}{words}{seed}){sink}" for one in (source, made)]
            first, *others = (
                Proposal(
                    f"fit(FeedRunner(..., {words}){sink})",
                    (*case.runner_import(file), file.replaced(given, form)),
                    advice,
                    makes=True,
                )
                for form in dict.fromkeys(forms)
            )
            yield replace(first, instead=tuple(others))


def producer_words(
    case: PatchCase, *, copies: bool, apart: bool = True, told: bool = False
) -> Iterator[tuple[str, Recommendation | None]]:
    """Yield the options of producers: those that an advice names, with the advice, then those of
    which nothing is predicted: a process for each core, one thread, one process.

    `copies`: there may be several, and the records stay those of one; `apart`: also several
    threads, which share what the stream changes; `told`: the loop reads what the stream changes,
    which worker processes change in copies.
    """
    advice = case.advice("threads", "processes", "num_parallel_calls", "transport")
    words: dict[str, Recommendation | None] = {}
    if advice is not None and (advice.value.isdigit() or advice.knob == "transport"):
        knob = "processes" if advice.knob in ("processes", "transport") else "threads"
        count = case.count(advice) if copies and (apart or knob == "processes") else 1
        words[f"{knob}={count}"] = advice if count == case.count(advice) else None
    for one in (f"processes={case.cores if copies else 1}", ALONE, "processes=1"):
        words.setdefault(one, None)
    yield from (one for one in words.items() if not (told and one[0].startswith("processes=")))


def keras_sink(file: SourceFile) -> str:
    """Return how Keras takes the batches of a FeedRunner in a file."""
    return ".dataset()" if "tensorflow" in imported_by(file) else ".keras()"


def _autotune(file: SourceFile) -> str:
    name = imported_by(file).get("tensorflow") or "tf"
    return f"{name}.data.AUTOTUNE"
