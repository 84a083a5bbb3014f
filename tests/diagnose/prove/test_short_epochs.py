"""Short epochs show what a script changes between epochs, and which records each of them holds."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from fastfeed.diagnose.patches.source_file import Edit
from fastfeed.diagnose.proof import DIFFERENT, OTHER_ORDER, SAME
from fastfeed.diagnose.prove.digests import compared
from fastfeed.diagnose.prove.short_epochs import ShortEpochs
from fastfeed.diagnose.prove.trial import Trials
from fastfeed.diagnose.prove.trial_run import BATCHES, REORDERED, RESEEDED
from fastfeed.diagnose.prove.workspace import Workspace
from fastfeed.diagnose.run.script import Script

SHORT = """\
import json, sys
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.prove.short_epochs import ShortEpochs
from fastfeed.steps.timeline import Timeline
short = ShortEpochs({batches}, reordered={reordered})
short.install(HookLog(Timeline()))
import numpy as np
class Numbers:
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        return np.float32(index)
data = Numbers()
class Mates(Numbers):
    def __getitem__(self, index):
        return np.float32([index, (index + 1) % len(self)])
"""
LOADER = """\
import torch
from torch.utils.data import DataLoader, WeightedRandomSampler
torch.manual_seed({seed})
def epochs(**options):
    loader = DataLoader(data, batch_size=5, **options)
    return [[batch.tolist() for batch in loader] for _ in range(2)]
"""
CHANGING = """\
import time
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
scale = [1]
class Scaled(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        return np.float32(index) * scale[0], index
if __name__ == "__main__":
    loader = DataLoader(Scaled(), batch_size=4, shuffle=True, num_workers=1)  # {}
    for epoch in range(4):
        for batch in loader:
            time.sleep(0.001)
        scale[0] += 1
"""


def printed(code: str) -> object:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def in_torch(code: str, *, seed: int = 0, reordered: bool = False) -> object:
    pytest.importorskip("torch")
    head = SHORT.format(batches=4, reordered=reordered) + LOADER.format(seed=seed)
    return printed(f"{head}print(json.dumps({code}))")


def test_a_loader_and_a_runner_have_short_epochs_of_the_same_records() -> None:
    found = in_torch("[epochs(), epochs(shuffle=True), len(data), short.shortened]")
    plain, shuffled, length, shortened = found  # type: ignore[misc]
    assert length == 1000, "for the script's own code"
    assert shortened
    for epoch in (*plain, *shuffled):
        assert len(epoch) == 4
        assert sorted(chain.from_iterable(epoch)) == list(range(20))
    code = "from fastfeed import FeedRunner\n"
    code += "with FeedRunner(data, batch_size=5, shuffle=True, epochs=2) as runner:\n"
    code += "    print(json.dumps([batch.tolist() for batch in runner]))"
    batches = printed(SHORT.format(batches=4, reordered=False) + code)
    assert len(batches) == 8  # type: ignore[arg-type]
    assert sorted(chain.from_iterable(batches[:4])) == list(range(20))  # type: ignore[index]


@pytest.mark.parametrize("options", ["threads=2", "processes=2"])
def test_copies_of_data_are_as_long_as_they_are(options: str) -> None:
    """What a record holds depends on no short epoch, and data beside them are not copied."""
    code = "import threading\nfrom fastfeed import FeedRunner\n"
    code += "other = Mates()\nother.lock = threading.Lock()\nshort.shorten(other, 20)\n"
    code += (
        f"if __name__ == '__main__':\n  with FeedRunner(Mates(), batch_size=5, epochs=2, {options}"
    )
    code += ") as runner:\n    print(json.dumps([batch.tolist() for batch in runner]))"
    batches = printed(SHORT.format(batches=4, reordered=False) + code)
    assert len(batches) == 8  # type: ignore[arg-type]
    assert batches[3][-1] == [19, 20]  # type: ignore[index]


def test_keras_reads_few_batches_in_an_epoch() -> None:
    pytest.importorskip("keras")
    code = "import keras, numpy as np\n"
    code += "class Data(keras.utils.PyDataset):\n"
    code += "    def __len__(self):\n        return 1000\n"
    code += "    def __getitem__(self, index):\n        return np.ones((2, 3)), np.ones((2, 1))\n"
    code += "model = keras.Sequential([keras.layers.Dense(1)])\nmodel.compile(loss='mse')\n"
    code += "model.fit(Data(), epochs=3, verbose=0)\n"
    code += "print(json.dumps(int(model.optimizer.iterations.numpy())))"
    assert printed(SHORT.format(batches=4, reordered=False) + code) == 12


@pytest.mark.parametrize(
    "options",
    [
        "shuffle=True",
        "shuffle=True, generator=torch.Generator().manual_seed(3)",
        "sampler=WeightedRandomSampler([1.0] * 20, 20)",
    ],
)
def test_the_order_of_samplers_is_kept_under_other_seeds(options: str) -> None:
    code = f"[epochs({options}), float(torch.rand(1))]"
    one, two = (in_torch(code, seed=seed) for seed in (0, 1))
    assert one[0] == two[0]  # type: ignore[index]
    assert one[1] != two[1]  # type: ignore[index]
    first, second = one[0]  # type: ignore[index]
    assert first != second
    if "Generator" not in options:
        other = in_torch(code, seed=0, reordered=True)
        assert other != in_torch(code, seed=1, reordered=True)


def test_samplers_that_are_left_early_draw_as_they_would() -> None:
    code = "import itertools\n"
    code += "def left(workers):\n"
    code += "    loader = DataLoader(data, batch_size=5, shuffle=True, num_workers=workers)\n"
    code += "    found = []\n"
    code += "    for _ in range(3):\n"
    code += "        torch.manual_seed(0)\n"
    code += "        it = iter(loader)\n"
    code += "        found.append([next(it).tolist() for _ in range(2)])\n"
    code += "    return found\n"
    head = SHORT.format(batches=4, reordered=False) + LOADER.format(seed=0)
    found = printed(f"{head}{code}print(json.dumps([left(0), left(1)]))")
    alone, workers = found  # type: ignore[misc]
    assert alone == workers
    assert alone[0] == alone[1] == alone[2]


def test_equal_generators_give_equal_orders() -> None:
    """Of two loaders whose batches a script takes in pairs."""
    one = "epochs(shuffle=True, generator=torch.Generator().manual_seed(3))"
    first, second, other = in_torch(f"[{one}, {one}, epochs(shuffle=True)]")  # type: ignore[misc]
    assert first == second != other


class Unready:
    def __len__(self) -> int:
        raise RuntimeError("call setup() first")


def test_what_has_no_class_of_its_own_keeps_its_length() -> None:
    short = ShortEpochs(4)
    for data in (list(range(100)), np.arange(100), range(100), object(), Unready()):
        short.shorten(data, 4)
    assert not short.shortened


def trials_of(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Trials:
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text(text)
    (folder / "scratch").mkdir()
    room = Workspace(Script(("train.py",)), scratch=folder / "scratch", environment={})
    return Trials(room, seconds=20.0, end_s=math.inf)


@pytest.mark.slow
def test_workers_that_live_on_do_not_see_what_changes_between_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    trials = trials_of(tmp_path, CHANGING, monkeypatch)
    name, at = str(tmp_path / "train.py"), CHANGING.index(")  # {}")
    stale = Edit(name, at, at, ", persistent_workers=True")
    runner = Edit(
        name,
        CHANGING.index("DataLoader(Scaled"),
        at + 1,
        "__import__('fastfeed').FeedRunner(Scaled(), batch_size=4, shuffle=True).torch()",
    )
    steady = Edit(name, CHANGING.index("scale[0] += 1"), len(CHANGING), "pass\n")
    runs = {(): (BATCHES, RESEEDED, REORDERED), (stale,): (BATCHES,)}
    runs |= {(steady,): (BATCHES,), (steady, runner): (BATCHES,)}
    found = {
        (edits, purpose): trials.batches(edits, seconds=20.0, purpose=purpose, epoch=40)
        for edits, purposes in runs.items()
        for purpose in purposes
    }
    assert not any(one.failed for one in found.values()), found
    before, after = found[(), BATCHES].digests, found[(stale,), BATCHES].digests
    assert before.epochs == after.epochs == [40, 80, 120, 160]
    assert before.shuffled
    assert before.shortened
    assert before.leaves[:40] == after.leaves[:40]
    reseeded = found[(), RESEEDED].digests
    assert compared(before, reseeded).word == SAME
    assert compared(before, after, reseeded=reseeded).word == DIFFERENT
    others = found[(), REORDERED].digests
    assert compared(before, others).word == OTHER_ORDER
    steadily = [found[edits, BATCHES].digests for edits in ((steady,), (steady, runner))]
    assert compared(*steadily).word == OTHER_ORDER
