"""Each patch: the line that it finds, and what it writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from fastfeed.diagnose.diagnosis import Recommendation
from fastfeed.diagnose.evidence import PRODUCER, TRAINER
from fastfeed.diagnose.patches import catalogue
from fastfeed.diagnose.patches.catalogue import proposals_of
from fastfeed.diagnose.patches.datasets import (
    CacheAfterMap,
    FittedInput,
    GeneratorDataset,
    ParallelMaps,
)
from fastfeed.diagnose.patches.float_data import FedData, YieldedData
from fastfeed.diagnose.patches.generator_call import GeneratorCall
from fastfeed.diagnose.patches.graph_queue import QueueThreads
from fastfeed.diagnose.patches.producers import PoolThreads, StartedProducers
from fastfeed.diagnose.patches.proposal import ALIKE, PatchCase, Proposal
from fastfeed.diagnose.patches.rarer import RarerPauses
from fastfeed.diagnose.patches.source_file import Edit
from fastfeed.diagnose.proof import WORDS
from fastfeed.steps.timeline import Leaf
from tests.diagnose.patches.patching import Script, added, applied

DRAWS = "def go(seed):\n    rng = np.random.default_rng((seed, 1))\n    while True: put(rng)\n"
KEYS = "def go(i):\n    put(key(i), store.seed(i))\n"
ENDS = "def go():\n    for row in rows:\n        put(row)\n"
SHARED = "def go():\n    for row in iter(rows.get, None):\n        put(row)\n"
FOREVER = "def all():\n    while True:\n        yield 1\n\n" + ENDS.replace("rows", "all()")
READS = "def go(i):\n    rng = np.random.default_rng(i)\n    put(rng, files[i])\n"


@pytest.mark.parametrize(
    ("text", "after"),
    [
        (
            "for _ in range(2):\n    Thread(target=go).start()\n",
            "for _ in range(6):\n    Thread(target=go).start()\n",
        ),
        (
            "ts = [Thread(target=go) for _ in range(n)]\nfor t in ts:\n    t.start()\n",
            "ts = [Thread(target=go) for _ in range(6)]\nfor t in ts:\n    t.start()\n",
        ),
    ],
)
def test_threads_that_a_loop_starts_are_more(tmp_path: Path, text: str, after: str) -> None:
    whole = f"{text}while True:\n    step(get())\n"
    script = Script(tmp_path, whole, kind="queue", loop="while True:")
    script.calls_of("Thread", "start()").advised("threads", "6")
    assert script.patched(StartedProducers()).startswith(after)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("for i in range(2):\n    Thread(target=go, args=(i,)).start()\n", WORDS[:2]),
        (f"{DRAWS}for i in range(2):\n    Thread(target=go, args=(i,)).start()\n", WORDS[:4]),
        (
            f"{DRAWS}ts = [Thread(target=go, args=(i,)) for i in range(2)]\n"
            "for t in ts:\n    t.start()\n",
            WORDS[:4],
        ),
        (f"{KEYS}for i in range(2):\n    Thread(target=go, args=(i,)).start()\n", WORDS[:2]),
        (f"{READS}for i in range(2):\n    Thread(target=go, args=(i,)).start()\n", WORDS[:2]),
        (f"{ENDS}for _ in range(2):\n    Thread(target=go).start()\n", WORDS[:2]),
        (f"{FOREVER}for _ in range(2):\n    Thread(target=go).start()\n", WORDS[:4]),
        (f"{SHARED}for _ in range(2):\n    Thread(target=go).start()\n", WORDS[:4]),
        ("ts = [Thread(target=go) for _ in range(2)]\nfor t in ts:\n    t.start()\n", WORDS[:4]),
        ("ts = [Thread(args=(i,)) for i in range(2)]\nfor t in ts:\n    t.start()\n", WORDS[:2]),
        *(
            (f"for _ in range(3):\n    Thread(target=go).start()\n{other}\n", None)
            for other in ("for _ in range(3): put(None)", "while end < 3: get()", "n = [0] * 3")
        ),
        ("for _ in range(3):\n    Thread(target=go).start()\ny = x[3] + 3\n", WORDS[:4]),
        ("for _ in range(n):\n    Thread(target=go).start()\nshare = files[::n]\n", None),
    ],
)
def test_threads_that_may_read_a_share_must_show_their_batches(
    tmp_path: Path, text: str, allowed: tuple[str, ...] | None
) -> None:
    script = Script(tmp_path, f"{text}while True:\n    step(get())\n", kind="queue", loop="while")
    script.calls_of("Thread", "start()").advised("threads", "6")
    found = script.proposals(StartedProducers())
    assert [one.allows for one in found] == ([] if allowed is None else [allowed])


def test_a_pool_gets_another_size(tmp_path: Path) -> None:
    text = "pool = ThreadPoolExecutor(4)\nwhile True:\n    step(get())\n"
    script = Script(tmp_path, text, kind="queue", loop="while True:")
    script.calls_of("Pool", "ThreadPoolExecutor").advised("threads", "6")
    assert "pool = ThreadPoolExecutor(6)\n" in script.patched(StartedProducers())


def test_native_pools_are_limited_before_they_load(tmp_path: Path) -> None:
    text = (
        '"""A script."""\nfrom __future__ import annotations\nimport numpy as np\n'
        "while True:\n    go()\n"
    )
    script = Script(tmp_path, text, kind="queue", loop="while True:")
    found = script.advised("OMP_NUM_THREADS", "1").patched(PoolThreads())
    at = found.index('os.environ["OMP_NUM_THREADS"] = "1"')
    assert found.index("__future__") < at < found.index("import numpy")


TFDATA = dedent(
    """
    import tensorflow as tf

    data = tf.data.Dataset.from_generator(make, output_signature=spec)
    data = data.cache().map(decode).batch(8)
    for x in data:
        step(x)
    """
)


def test_maps_run_in_parallel_and_end_in_a_prefetch(tmp_path: Path) -> None:
    script = Script(tmp_path, TFDATA, kind="tf.data", loop="for x in data:")
    for name in ("batch", "map", "cache"):
        script.calls_of(f"tf.data {name}", "data.cache()")
    found = script.patched(ParallelMaps())
    assert (
        "data.cache().map(decode, num_parallel_calls=tf.data.AUTOTUNE).batch(8)"
        ".prefetch(tf.data.AUTOTUNE)\n" in found
    )


@pytest.mark.parametrize(
    ("made", "changed"),
    [
        ("tf.train.batch([x, y], 10)", "tf.train.batch([x, y], 10, num_threads=2)"),
        ("tf.train.batch([x, y], 10, 1)", "tf.train.batch([x, y], 10, 2)"),
        (
            "tf.compat.v1.train.shuffle_batch([x], 8, 99, 9, num_threads=1)",
            "tf.compat.v1.train.shuffle_batch([x], 8, 99, 9, num_threads=2)",
        ),
        ("data.batch(10)", ""),
    ],
)
def test_a_queue_of_the_graph_gets_more_threads(tmp_path: Path, made: str, changed: str) -> None:
    text = f"import tensorflow as tf\nq = {made}\nwhile True:\n    sess.run(step)\n"
    script = Script(tmp_path, text, kind="session", loop="sess.run").advised("num_threads", "2")
    found = script.proposals(QueueThreads())
    assert [added(text, applied(text, one)) for one in found] == [[f"q = {changed}"]] * bool(
        changed
    )
    assert [one.advice is not None for one in found] == [True] * bool(changed)
    again = Script(tmp_path, text.replace("q = ", "q="), kind="session", loop="sess.run")
    assert len(again.proposals(QueueThreads())) == bool(changed), "also without an advice"
    more = Script(tmp_path, changed or text, kind="session", loop="")
    assert more.proposals(QueueThreads()) == [], "it has as many"


def test_a_cache_moves_behind_the_map(tmp_path: Path) -> None:
    script = Script(tmp_path, TFDATA, kind="tf.data", loop="for x in data:")
    for name in ("batch", "map", "cache"):
        script.calls_of(f"tf.data {name}", "data.cache()")
    assert "data = data.map(decode).cache().batch(8)\n" in script.patched(CacheAfterMap())


def test_a_runner_takes_the_place_of_from_generator(tmp_path: Path) -> None:
    endless = "\n\ndef make():\n    while True:\n        yield 1\n"
    for more, kind in (("", "processes"), (endless, "processes"), (endless, "threads")):
        script = Script(tmp_path, TFDATA + more, kind="tf.data", loop="for x in data:")
        script.calls_of("tf.data from_generator", "from_generator").advised(kind, "2")
        found = script.patched(GeneratorDataset())
        assert f"data = FeedRunner(make, {kind}=1).dataset()\n" in found
        assert "from fastfeed import FeedRunner\n" in found


FIT = "import tensorflow\nmodel.compile()\nmodel.fit(cells, epochs=3)\n"


def test_a_sequence_gets_workers_or_a_runner(tmp_path: Path) -> None:
    script = Script(tmp_path, FIT, kind="keras", loop="model.fit(")
    script.calls_of("fit", "model.fit(", x="Cells", indexed=True).advised("threads", "10")
    assert "cells.workers = 10\nmodel.fit(cells" in script.patched(FittedInput())
    found = script.patched(FittedInput(), titled="FeedRunner")
    made = "FeedRunner(cells, records=False, shuffle=True, threads=10)"
    assert f"fit({made}.dataset(), epochs=3)" in found


@pytest.mark.parametrize(("given", "mixed"), [("", "True"), (", shuffle=False", "False")])
def test_a_sequence_is_shuffled_as_fit_does(tmp_path: Path, given: str, mixed: str) -> None:
    text = FIT.replace("epochs=3", f"epochs=3{given}")
    script = Script(tmp_path, text, kind="keras", loop="model.fit(")
    script.calls_of("fit", "model.fit(", x="Cells", indexed=True)
    found = script.patched(FittedInput(), titled="FeedRunner")
    assert f"FeedRunner(cells, records=False, shuffle={mixed}, processes=2).dataset()" in found, (
        "one for each core"
    )


def test_a_sequence_is_in_the_same_order_when_a_script_runs_again(tmp_path: Path) -> None:
    text = f"import random\nrandom.seed(3)\n{FIT}"
    script = Script(tmp_path, text, kind="keras", loop="model.fit(")
    script.calls_of("fit", "model.fit(", x="Cells", indexed=True)
    found = script.patched(FittedInput(), titled="threads=1")
    assert "shuffle=True, threads=1, seed=random.getrandbits(31)).dataset()" in found


def test_an_import_goes_behind_a_comment_and_its_alias_is_that_of_the_package(
    tmp_path: Path,
) -> None:
    text = TFDATA.replace(
        "import tensorflow as tf", "import tensorflow.keras as k\nimport tensorflow as t  # noqa"
    )
    script = Script(tmp_path, text, kind="tf.data", loop="for x in data:")
    script.calls_of("tf.data map", ".map(decode)").calls_of("tf.data from_generator", "from_gen")
    assert "t.data.AUTOTUNE" in script.patched(ParallelMaps())
    found = script.patched(GeneratorDataset())
    assert "import tensorflow as t  # noqa\nfrom fastfeed import FeedRunner\n" in found


def test_each_change_is_proposed_once(tmp_path: Path) -> None:
    """Keras asks for its input once more for the evaluation in the same call."""
    script = Script(tmp_path, FIT, kind="keras", loop="model.fit(")
    for name in ("Cells", "More"):
        script.calls_of("fit", "model.fit(", x=name, indexed=True)
    titles = [one.title for one in proposals_of(script.case())]
    assert len(titles) == len(set(titles)) == 4


def test_a_change_that_is_no_python_is_not_proposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(tmp_path, FIT, kind="keras", loop="model.fit(")
    right, wrong = (Proposal("", (Edit(str(script.path), 0, 0, text),)) for text in ("x\n", "x "))
    twice = Proposal("", (Edit(str(script.path), 0, 9, ""), Edit(str(script.path), 3, 8, "")))

    class Broken:
        def proposals(self, case: PatchCase) -> Iterator[Proposal]:
            yield from (wrong, twice, replace(wrong, instead=(twice, right)))

    monkeypatch.setattr(catalogue, "PATCHES", (Broken(),))
    assert list(proposals_of(script.case())) == [right]


def test_a_patch_that_cannot_read_a_script_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Blind:
        def proposals(self, case: PatchCase) -> Iterator[Proposal]:
            yield Proposal("one", ())
            raise IndexError("line 7")

    right = Proposal("right", (Edit(str(tmp_path / "train.py"), 0, 0, "pass\n"),))

    class Right:
        def proposals(self, case: PatchCase) -> Iterator[Proposal]:
            yield right

    patches = (Blind(), Right())
    monkeypatch.setattr(catalogue, "PATCHES", patches)
    case = Script(tmp_path, "for x in y:\n    pass\n", kind="sampled", loop="for").case()
    assert list(proposals_of(case)) == [right]
    assert case.failed == ["Blind: it cannot read this script (IndexError: line 7)"]


def test_the_first_of_each_patch_comes_before_the_second_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(tmp_path, FIT, kind="keras", loop="model.fit(")

    class Predicting:
        def __init__(self, *gains: float) -> None:
            self.gains = gains

        def proposals(self, case: PatchCase) -> Iterator[Proposal]:
            for gain in self.gains:
                name = f"{self.gains}, {gain}"
                edit = Edit(str(script.path), 0, 0, f"# {name}\n")
                told = Recommendation("", "threads", "2", gain, (gain, gain)) if gain else None
                yield Proposal(name, (edit,), told)

    patches = (Predicting(1.5, 3.0), Predicting(0, 4.0), Predicting(2.0, 0))
    monkeypatch.setattr(catalogue, "PATCHES", patches)
    titles = [one.title for one in proposals_of(script.case())]
    first = ["(0, 4.0), 0", "(2.0, 0), 2.0", "(1.5, 3.0), 1.5"]
    assert titles == [*first, "(0, 4.0), 4.0", "(2.0, 0), 0", "(1.5, 3.0), 3.0"]


def test_arrays_that_keras_fits_stay(tmp_path: Path) -> None:
    script = Script(tmp_path, FIT, kind="keras", loop="model.fit(")
    script.calls_of("fit", "model.fit(", x="ndarray")
    assert script.proposals(FittedInput()) == []


FITTED = """
import tensorflow as tf

def plants(n):
    while True:
        yield read(n)

first = next(plants(1))
def main():
    if fast:
        from fastfeed import FeedRunner, watch
    model.fit(plants(3), epochs=2)
"""


def test_a_generator_that_keras_fits_runs_in_a_runner(tmp_path: Path) -> None:
    script = Script(tmp_path, FITTED, kind="keras", loop="model.fit(")
    script.sampled(PRODUCER, "plants", "yield read(n)").advised("threads", "4")
    assert added(FITTED, script.patched(GeneratorCall())) == [
        "from fastfeed import FeedRunner",
        "model.fit(FeedRunner(lambda: plants(3), threads=1).dataset(), epochs=2)",
    ]
    found = script.proposals(GeneratorCall())
    alike = [one.title for one in found if one.allows == ALIKE]
    assert alike == ["FeedRunner(plants, threads=1).dataset()"], "it runs the same code in order"


@pytest.mark.parametrize(
    ("seeds", "seed"),
    [
        ("np.random.seed(0)", ", seed=int(np.random.randint(2**31))"),
        ("tf.keras.utils.set_random_seed(0)", ", seed=int(np.random.randint(2**31))"),
        ("random.seed(0)", ""),
        ("tf.random.set_seed(0)", ""),
    ],
)
def test_a_generator_in_a_process_draws_the_same_when_a_script_runs_again(
    tmp_path: Path, seeds: str, seed: str
) -> None:
    """Its helper of another file draws, and what seeds may be in a third one."""
    (tmp_path / "helper.py").write_text(
        "import numpy as n\n\ndef read(n_rows):\n    return n.random.rand(n_rows)\n"
    )
    (tmp_path / "start.py").write_text(
        f"import random\nimport numpy as np\nimport tensorflow as tf\n{seeds}\n"
    )
    text = FITTED.replace("import tensorflow as tf", "import tensorflow as tf\nimport numpy as np")
    script = Script(tmp_path, text, kind="keras", loop="model.fit(")
    script.sampled(PRODUCER, "plants", "yield read(n)").advised("processes", "4")
    found = script.patched(GeneratorCall(), titled="processes=1")
    assert f"FeedRunner(lambda: plants(3), processes=1{seed}).dataset()" in found


QUEUED = """
import torch

def batches():
    for row in rows:
        yield parse(row)

def feed(session):
    for batch in batches():
        session.run(enqueue, {x: batch})

def steps():
    while True:
        yield session.run(train)
"""


@pytest.mark.parametrize("loop", ["for row in rows:", "while True:"])
def test_a_generator_has_one_producer(tmp_path: Path, loop: str) -> None:
    """Each of several would shuffle for itself: an epoch would miss records and repeat others."""
    text = FITTED.replace("while True:", loop)
    script = Script(tmp_path, text, kind="keras", loop="model.fit(")
    script.sampled(PRODUCER, "plants", "yield read(n)").advised("threads", "4")
    titles = [one.title for one in script.proposals(GeneratorCall())]
    assert titles == [f"FeedRunner(plants, {n}=1).dataset()" for n in ("threads", "processes")]


@pytest.mark.parametrize(
    ("counts", "reads", "told"),
    [
        ("stats['seen'] += 1", "if stats['seen'] > 9: break", True),
        ("stats.seen += 1", "print(stats.seen)", True),
        ("global seen; seen += 1", "print(seen)", True),
        ("stats['seen'] += 1", "pass", False),
        ("stats = {}; stats['seen'] = 1", "print(stats)", False),
        ("row[0] = 1", "row = 2", False),
        ("os.environ['SEEN'] = '1'", "print(os.name)", False),
    ],
)
def test_what_the_loop_reads_of_a_generator_is_not_left_in_a_worker(
    tmp_path: Path, counts: str, reads: str, told: bool
) -> None:
    text = (
        "import os\n\ndef batches():\n    for n in rows:\n"
        f"        {counts}\n        yield make(n)\n\n"
        f"for batch in batches():\n    step(batch)\n    {reads}\n"
    )
    script = Script(tmp_path, text, kind="sampled", loop="for batch in batches")
    script.sampled(TRAINER, "batches", "yield make")
    titles = [one.title for one in script.proposals(GeneratorCall())]
    assert any("processes" in one for one in titles) != told
    assert any("threads=1" in one for one in titles)


@pytest.mark.parametrize("reads", ["print(counts)", "pass"])
def test_what_is_read_behind_the_loop_is_not_left_in_a_worker(tmp_path: Path, reads: str) -> None:
    text = (
        "def batches(stats):\n    for n in rows:\n        stats['seen'] += 1\n"
        "        yield make(n)\n\n"
        f"for batch in batches(counts):\n    step(batch)\n{reads}\n"
    )
    script = Script(tmp_path, text, kind="sampled", loop="for batch in batches")
    script.sampled(TRAINER, "batches", "yield make")
    titles = [one.title for one in script.proposals(GeneratorCall())]
    assert any("processes" in one for one in titles) == (reads == "pass")


def test_a_feeding_thread_gets_its_batches_from_processes(tmp_path: Path) -> None:
    script = Script(tmp_path, QUEUED, kind="session", loop="yield session.run(train)")
    script.sampled(PRODUCER, "batches", "yield parse").advised("processes", "1")
    found = script.patched(GeneratorCall(), form=1)
    assert "for batch in FeedRunner(batches, processes=1):\n" in found
    assert ".torch():" in script.patched(GeneratorCall())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("for batch in batches():", "for batch in [*batches(), *batches()]:"),
        ("yield parse", "parse"),
    ],
)
def test_a_generator_without_one_call_stays(tmp_path: Path, before: str, after: str) -> None:
    script = Script(tmp_path, QUEUED.replace(before, after), kind="session", loop="yield session")
    script.sampled(PRODUCER, "batches", "parse(row)")
    assert script.proposals(GeneratorCall()) == []


def test_the_generator_of_the_loop_itself_stays(tmp_path: Path) -> None:
    script = Script(tmp_path, QUEUED, kind="session", loop="yield session.run(train)")
    script.sampled(TRAINER, "steps", "yield session.run(train)")
    assert script.proposals(GeneratorCall()) == []


def test_pauses_can_be_made_rarer(tmp_path: Path) -> None:
    text = "while True:\n    step(get())\n    if n % every == 0:\n        save()\n"
    script = Script(tmp_path, text, kind="queue", loop="while True:").advised("every", "10x")
    script.made_at("save()")
    script.parts = [part.__class__("host", part.place, 0.3) for part in script.parts]
    (found,) = script.proposals(RarerPauses())
    assert found.rarer
    assert "if n % (10 * every) == 0:" in applied(text, found)


def test_keras_can_evaluate_after_fewer_epochs(tmp_path: Path) -> None:
    text = "model.fit(data, epochs=9, validation_data=more)\n"
    script = Script(tmp_path, text, kind="keras", loop="model.fit").advised("every", "10x")
    (found,) = script.calls_of("fit", "model.fit(").proposals(RarerPauses())
    assert found.rarer
    assert "validation_data=more, validation_freq=10)" in applied(text, found)


def test_data_that_are_fed_are_cast_once(tmp_path: Path) -> None:
    text = "import numpy as np\nwhile True:\n    sess.run(op, feed_dict={x: rows[i], y: ids[i]})\n"
    stale = ("    n = mix(rows)\n\ndef mix(a): ...\n", "\ndef mix():\n    rows[0] = 1\n")
    for more in ("", "    rng.shuffle(rows)\n", *stale):
        script = Script(tmp_path, text + more, kind="session", loop="sess.run")
        script.advised("dtypes", "float32")
        kinds = (("x", "float64"), ("y", "int64"))
        script.loop.leaves = tuple(Leaf(f"feed[{n!r}]", d, (9, 9), "array") for n, d in kinds)
        found = script.proposals(FedData())
        assert [one.casts for one in found] == [False] * (not more)  # as the session does
        if found:
            assert added(text, applied(text, found[0])) == [
                "rows_float32 = np.asarray(rows, np.float32)",
                "sess.run(op, feed_dict={x: rows_float32[i], y: ids[i]})",
            ]


def test_what_a_generator_yields_is_cast(tmp_path: Path) -> None:
    text = "import numpy as np\n\ndef rows():\n    while True:\n        yield x / 255, y\n\n"
    text += "for x, y in rows():\n    step(x, y)\n"
    script = Script(tmp_path, text, kind="sampled", loop="for x, y")
    script.sampled(TRAINER, "rows", "yield x").advised("dtypes", "float32")
    script.loop.leaves = (Leaf("batch[0]", "float64", (9,), "array"),)
    assert "yield np.asarray(x / 255, np.float32), y\n" in script.patched(YieldedData())


def test_what_the_script_sets_itself_is_limited(tmp_path: Path) -> None:
    text = 'import os\nos.environ["OPENBLAS_NUM_THREADS"] = n\nwhile True:\n    go()\n'
    script = Script(tmp_path, text, kind="queue", loop="while True:")
    found = script.advised("OMP_NUM_THREADS", "1").patched(PoolThreads())
    assert 'os.environ["OPENBLAS_NUM_THREADS"] = "1"\n' in found
