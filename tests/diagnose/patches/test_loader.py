"""Changes of a DataLoader: workers that live on, and a FeedRunner in its place."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from fastfeed.diagnose.patches.loader import LoaderRunner, LoaderStart, LoaderWorkers
from fastfeed.diagnose.patches.proposal import Patch
from fastfeed.diagnose.proof import WORDS
from tests.diagnose.patches.patching import Script, added

LOADER = dedent(
    """
    import torch
    from torch.utils.data import DataLoader

    loader = DataLoader(
        data, batch_size=8, shuffle=True, num_workers=args.workers, drop_last=True
    )
    for x in loader:
        step(x)
    """
)


def test_a_loader_gets_workers_that_live_on(tmp_path: Path) -> None:
    script = Script(tmp_path, LOADER, kind="torch", loop="for x in loader:")
    script.calls_of("DataLoader", "loader = DataLoader(", num_workers=0, persistent_workers=False)
    found = script.advised("num_workers", "4").patched(LoaderWorkers())
    assert "num_workers=4, drop_last=True, persistent_workers=True\n" in found


@pytest.mark.parametrize("patch", [LoaderWorkers(), LoaderRunner()])
@pytest.mark.parametrize(("whole", "allowed"), [(True, WORDS[:2]), (False, WORDS[:4])])
def test_a_stream_that_each_worker_reads_must_show_its_records(
    tmp_path: Path, patch: Patch, whole: bool, allowed: tuple[str, ...]
) -> None:
    """Four workers would make four epochs of one, and random batches would not show it."""
    script = Script(tmp_path, LOADER, kind="torch", loop="for x in loader:")
    script.calls_of("DataLoader", "loader = DataLoader(", num_workers=0, whole=whole)
    found = script.advised("num_workers", "4").proposals(patch)
    assert {one.allows for one in found} == {allowed}


@pytest.mark.parametrize(("stream", "proposed"), [(False, True), (True, False)])
def test_an_epoch_of_a_stream_that_ends_early_keeps_its_loader(
    tmp_path: Path, stream: bool, proposed: bool
) -> None:
    """The next epoch reads a stream from its begin, where a runner would go on."""
    loop = "    for x in loader:\n        step(x)\n        if x > 3:\n            break\n"
    text = f"{LOADER[: LOADER.index('for x in')]}for epoch in range(3):\n{loop}"
    script = Script(tmp_path, text, kind="torch", loop="for x in loader:")
    script.calls_of("DataLoader", "loader = DataLoader(", num_workers=2, stream=stream)
    assert bool(script.proposals(LoaderRunner())) == proposed


@pytest.mark.parametrize(
    ("start", "workers", "more", "proposed"),
    [
        ("spawn", 2, "data.set_epoch(3)\n", True),
        ("fork", 2, "data.set_epoch(3)\n", False),
        ("spawn", 0, "data.set_epoch(3)\n", False),
        ("spawn", 2, "", False),  # they can live on
    ],
)
def test_new_workers_of_each_epoch_import_torch_once(
    tmp_path: Path, start: str, workers: int, more: str, proposed: bool
) -> None:
    script = Script(tmp_path, LOADER + more, kind="torch", loop="for x in loader:")
    facts = {"num_workers": workers, "persistent_workers": False, "start": start}
    script.calls_of("DataLoader", "loader = DataLoader(", **facts)
    assert len(script.proposals(LoaderStart())) == proposed
    if proposed:
        found = script.patched(LoaderStart())
        assert "multiprocessing_context='forkserver' if (args.workers) else None\n" in found
        assert (
            "DataLoader\nimport multiprocessing\n\n"
            'multiprocessing.set_forkserver_preload(["torch"])\n'
        ) in found


def test_as_many_workers_as_cores_are_tried_as_well(tmp_path: Path) -> None:
    script = Script(tmp_path, LOADER, kind="torch", loop="for x in loader:")
    script.calls_of("DataLoader", "loader = DataLoader(", num_workers=0, persistent_workers=True)
    script.advised("num_workers", "1")
    assert [one.title for one in script.proposals(LoaderWorkers())] == [
        "num_workers=1",
        "num_workers=2",
    ]


@pytest.mark.parametrize(
    ("now", "starts", "titles"),
    [
        (0, False, ["num_workers=1"]),
        (0, True, ["num_workers=8", "num_workers=2"]),
        (3, False, ["num_workers=2"]),
    ],
)
def test_copies_of_a_generator_do_not_draw_alike(
    tmp_path: Path, now: int, starts: bool, titles: list[str]
) -> None:
    """Two workers would augment their records by the same numbers, as the three of before."""
    script = Script(tmp_path, LOADER, kind="torch", loop="for x in loader:")
    facts = {"num_workers": now, "persistent_workers": True, "starts": starts, "draws": True}
    script.calls_of("DataLoader", "loader = DataLoader(", **facts)
    script.advised("num_workers", "8")
    assert [one.title for one in script.proposals(LoaderWorkers())] == titles


def test_fewer_workers_are_tried_where_there_are_more_than_cores(tmp_path: Path) -> None:
    script = Script(tmp_path, LOADER, kind="torch", loop="for x in loader:")
    script.calls_of("DataLoader", "loader = DataLoader(", num_workers=4, persistent_workers=False)
    assert [one.title for one in script.proposals(LoaderWorkers())] == [
        "persistent_workers=True",
        "num_workers=2, persistent_workers=True",
    ]


@pytest.mark.parametrize(
    "more",
    [
        "    print(len(loader.dataset))\n",
        "    data.set_epoch(3)\n",
        "    loader.dataset.epoch = 3\n",
    ],
)
def test_a_loader_whose_data_change_between_epochs_keeps_its_workers_new(
    tmp_path: Path, more: str
) -> None:
    script = Script(tmp_path, LOADER + more, kind="torch", loop="for x in loader:")
    script.calls_of("DataLoader", "loader = DataLoader(", num_workers=0, persistent_workers=False)
    script.advised("num_workers", "2")
    assert script.proposals(LoaderRunner()) == []
    persistent = "persistent_workers" in script.patched(LoaderWorkers())
    assert persistent == ("print" in more)


HELD = """
import torch.utils.data.dataset
from torch.utils.data import DataLoader

class Trainer:
    def __init__(self, data):
        self.data, self.sampler = data, None
        self.loader = DataLoader(data, batch_size=8)

    def run(self):
        for x in self.loader:
            step(x, self.sampler)

args = parser.parse_args()
data = datasets[args.dataset]
"""


def held(folder: Path, more: str) -> Script:
    """A loader that an object holds."""
    script = Script(folder, HELD + more, kind="torch", loop="for x in self.loader:")
    script.calls_of("DataLoader", "= DataLoader(", num_workers=0, persistent_workers=False)
    return script.advised("num_workers", "2")


@pytest.mark.parametrize(
    "more",
    [
        "def log(loader):\n    print(len(loader.dataset))\n",
        "def log(seen):\n    print(len(seen.dataset))\n",
        "def log(seen):\n    print(seen[0].batch_sampler)\n",
        "print(trainer.loader.batch_size)\n",
        "more = DataLoader(rest)\ndef log(more):\n    print(len(more.dataset))\n",
    ],
)
def test_a_loader_whose_attributes_another_name_reads_stays(tmp_path: Path, more: str) -> None:
    assert held(tmp_path, "").proposals(LoaderRunner())
    script = held(tmp_path, more)
    assert script.proposals(LoaderRunner()) == []
    assert "persistent_workers" in script.patched(LoaderWorkers())


@pytest.mark.parametrize(
    "more",
    [
        "trainer.loader.dataset.set_epoch(3)\n",
        "def go(seen):\n    seen.dataset.epoch = 3\n",
        "def go(seen):\n    seen.dataset.rows[3] = 3\n",
        "class More(Trainer):\n    def go(self):\n        self.data.set_epoch(3)\n",
        "def go(data):\n    for epoch in range(3):\n        data.epoch = epoch\n",
    ],
)
def test_data_that_another_name_changes_keep_their_workers_new(tmp_path: Path, more: str) -> None:
    script = held(tmp_path, more)
    assert "persistent_workers" not in script.patched(LoaderWorkers())
    assert script.proposals(LoaderRunner()) == []


def test_what_datasets_and_options_hold_is_no_change_and_no_read_of_a_loader(
    tmp_path: Path,
) -> None:
    more = """
class Part(torch.utils.data.dataset.Dataset):
    def __init__(self, dataset, data):
        self.dataset = dataset
        self.data[0] = len(self.dataset)
    def __getitem__(self, i):
        self.dataset.seen[i] = True

print(args.dataset)
more = DataLoader(rest)
print(len(more.dataset))
for p in model.parameters():
    p.data.zero_()
"""
    script = held(tmp_path, more)
    assert script.proposals(LoaderRunner())
    assert "persistent_workers" in script.patched(LoaderWorkers())


def test_workers_of_a_loader_that_has_them_are_kept(tmp_path: Path) -> None:
    script = Script(tmp_path, LOADER, kind="torch", loop="for x in loader:")
    script.calls_of("DataLoader", "loader = DataLoader(", num_workers=2, persistent_workers=False)
    found = script.advised("epochs", "kept workers").patched(LoaderWorkers())
    assert "num_workers=args.workers, drop_last=True, persistent_workers=True\n" in found


def test_a_runner_takes_the_arguments_of_a_loader(tmp_path: Path) -> None:
    script = Script(tmp_path, LOADER, kind="torch", loop="for x in loader:")
    script.calls_of("DataLoader", "loader = DataLoader(", num_workers=2)
    found = script.patched(LoaderRunner())
    made = 'FeedRunner(data, batch_size=8, shuffle=True, last_batch="drop", '
    made += "seed=int(torch.randint(2**62, ())), processes=2).torch()"
    assert added(LOADER, found) == ["from fastfeed import FeedRunner", f"loader = {made}"]


@pytest.mark.parametrize(
    ("imports", "name"),
    [
        ("import torch", "torch"),
        ("import torch as th", "th"),
        ("", "torch"),
        ("def main():\n    import torch as th\n", "torch"),
    ],
)
def test_a_runner_draws_its_seed_as_a_loader_does(tmp_path: Path, imports: str, name: str) -> None:
    """A script that seeds torch draws the same in each run, and each runner of it something else,
    with a name that is there."""
    text = LOADER.replace("import torch\n", "import os\nos.environ['A'] = '1'\n")
    text = f"{imports}\n{text}"
    script = Script(tmp_path, text, kind="torch", loop="for x in loader:")
    script.calls_of("DataLoader", "loader = DataLoader(", num_workers=2)
    found = script.patched(LoaderRunner())
    assert f"seed=int({name}.randint(2**62, ()))" in found
    more = "" if imports.startswith("import") else "\nimport torch"
    assert f"from torch.utils.data import DataLoader{more}\n\nloader" in found


def test_a_runner_with_a_process_for_each_core_is_tried_as_well(tmp_path: Path) -> None:
    script = Script(tmp_path, LOADER, kind="torch", loop="for x in loader:")
    script.calls_of("DataLoader", "loader = DataLoader(", num_workers=6)
    found = [one.title for one in script.advised("epochs", "gap").proposals(LoaderRunner())]
    assert found == [
        f"FeedRunner(..., processes={count}).torch() in place of DataLoader" for count in (6, 2)
    ]


@pytest.mark.parametrize(
    ("start", "given", "stays"),
    [
        (
            "import numpy as np\ndef start(i):\n    np.random.seed(torch.initial_seed() % 2**32)",
            "start",
            False,
        ),
        ("import random\ndef start(i):\n    seed = i + 3\n    random.seed(seed)", "start", False),
        ("def start(i):\n    torch.set_num_threads(int(1))", "start", False),
        ("import numpy as np", "lambda i: np.random.seed(i)", False),
        ("", "None", False),
        ("def start(i):\n    data.file = open(str(i))", "start", True),
        ("def start(i):\n    global rows\n    rows = read(i)", "start", True),
        ("def start(i):\n    np.random.seed(i)\n    data.split(i)", "start", True),
        ("from elsewhere import start", "start", True),
        ("def start(i):\n    n = data.split(i)\n    torch.manual_seed(n)", "start", True),
        ("def start(i):\n    data.set_seed(i)", "start", True),
        ("import cv2\ndef start(i):\n    cv2.setNumThreads(0)", "start", True),
        ("start = find()", "start", True),
    ],
)
def test_a_function_that_only_seeds_workers_is_left_out(
    tmp_path: Path, start: str, given: str, stays: bool
) -> None:
    text = LOADER.replace("drop_last=True", f"worker_init_fn={given}, generator=g")
    script = Script(tmp_path, f"{start}\n{text}", kind="torch", loop="for x in loader:")
    facts = {"num_workers": 2, "whole": True, "starts": given != "None"}
    script.calls_of("DataLoader", "loader = DataLoader(", **facts)
    found = script.proposals(LoaderRunner())
    assert bool(found) != stays
    assert {one.allows for one in found} <= {WORDS[:2]}, "of a stream each worker reads all"
    if found:
        drawn = "int(torch.randint(2**62, (), generator=g))"
        given = f"batch_size=8, shuffle=True, seed={drawn}, processes=2"
        assert f"loader = FeedRunner(data, {given}).torch()\n" in script.patched(LoaderRunner())
    (more,) = (
        one
        for one in script.advised("num_workers", "4").proposals(LoaderWorkers())
        if "num_workers=4" in one.title
    )
    assert more.allows == (WORDS[:4] if stays else WORDS[:2])


def test_a_loader_with_a_sampler_stays(tmp_path: Path) -> None:
    text = LOADER.replace("shuffle=True", "sampler=mine")
    script = Script(tmp_path, text, kind="torch", loop="for x in loader:")
    script.calls_of("DataLoader", "loader = DataLoader(", num_workers=2)
    assert script.proposals(LoaderRunner()) == []
