"""A source that travels into a fresh interpreter: by value, without a copy of its arrays, or with a
clear refusal."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed.errors import OptionError
from fastfeed.producers.process.ship import pack, unpack
from fastfeed.ring.memory import Segment

ROOT = Path(__file__).parents[3]
WORKER = (
    "import sys; from fastfeed.producers.process.ship import unpack; "
    "value = unpack(*map(int, sys.argv[1:]))\n"
)
MIB = 2**20


def python(code: str, *arguments: object, fds: tuple[int, ...] = ()) -> str:
    """Return what a fresh interpreter prints; it finds fastfeed, but none of the tests."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, pass_fds=fds)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def in_worker(value: Any, code: str) -> str:
    shipment = pack(value, what="the source")
    try:
        return python(WORKER + code, shipment.fd, shipment.nbytes, fds=(shipment.fd,))
    finally:
        shipment.close()


# From the main module.

PROGRAM = '''
import functools, subprocess, sys
import cloudpickle
import numpy as np
from fastfeed.producers.process.ship import pack

OFFSET = 10

class Broken(Exception):
    """Carries what it was given."""

def add(a, b=1):
    return a + b + OFFSET

def closure():
    large = np.arange(100_000)
    return lambda: int(large.sum())

class Loader:
    def __init__(self):
        self.n = 5
    def __call__(self):
        return self.n
    def method(self):
        return add(self.n)
    def fail(self):
        raise Broken("gone", self.n)

WORKER = """
import sys, cloudpickle
from fastfeed.producers.process.ship import unpack
value = unpack(*map(int, sys.argv[1:]))
assert not hasattr(sys.modules['__main__'], 'Loader')
try:
    answer = value()
except Exception as error:
    answer = error
sys.stdout.buffer.write(cloudpickle.dumps(answer))
"""

def answer(source):
    shipment = pack(source, what="the source")
    command = [sys.executable, "-c", WORKER, str(shipment.fd), str(shipment.nbytes)]
    done = subprocess.run(command, capture_output=True, pass_fds=[shipment.fd], check=True)
    shipment.close()
    return cloudpickle.loads(done.stdout)

if __name__ == "__main__":
    sources = [functools.partial(add, 1, b=2), lambda: add(3), closure(), Loader(), Loader().method]
    answers = [answer(source) for source in sources]
    assert answers == [13, 14, sum(range(100_000)), 5, 16], answers
    error = answer(Loader().fail)
    assert type(error) is Broken and error.args == ("gone", 5), error
    print("complete")
'''


def test_what_the_main_module_defines_travels_by_value_and_its_exceptions_come_back(
    tmp_path: Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.stdout, done.stderr) == ("complete\n", "")


def test_a_mapped_file_is_opened_again_there(tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", np.arange(MIB))
    rows = np.load(tmp_path / "data.npy", mmap_mode="r")[1000:]
    assert (
        in_worker(lambda: rows, "print(value().filename, value()[0])")
        == f"{tmp_path / 'data.npy'} 1000"
    )


# What it costs.

STATUS = (
    "def kib(key): return int(open('/proc/self/status').read().split(key + ':')[1].split()[0])\n"
)


def test_a_worker_maps_and_does_not_copy() -> None:
    data = np.ones(64 * MIB, np.uint8)
    code = STATUS + "total = int(value().sum()); print(kib('RssAnon'), kib('RssShmem'), total)"
    own, shared, total = map(int, in_worker(lambda: data, code).split())
    without = int(in_worker(lambda: data, STATUS + "print(kib('RssAnon'))"))
    assert total == data.size
    assert shared > 60 * 1024 and own - without < 16 * 1024


@pytest.mark.parametrize("view", ["data", "data[::2]"])
def test_packing_makes_no_third_copy(view: str) -> None:
    code = STATUS + (
        "import numpy; from fastfeed.producers.process.ship import pack\ndata = numpy.ones((2**13, "
        f"2**13), numpy.uint8); view = {view}; before = kib('VmRSS')\nshipment = pack(lambda: "
        "view, what='the source'); print(kib('VmHWM') - before, shipment.nbytes // 1024)"
    )
    more, shipped = map(int, python(code).split())
    assert more < 1.2 * shipped


# What goes wrong on the way.


def test_what_cannot_be_pickled_is_told() -> None:
    with pytest.raises(
        OptionError,
        match="^the source cannot be sent .*: the generator, of type generator, cannot be pickled",
    ) as failed:
        pack(((i for i in range(3)), 5), what="the source")
    assert isinstance(failed.value.__cause__, TypeError)


def test_a_module_of_the_trainer_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("def batches(): yield 1")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here

    code = WORKER.replace(
        "; value", "\nfrom fastfeed.errors import OptionError\ntry: value"
    ).rstrip()
    code += "\nexcept OptionError as error: print(error)"
    shipment = pack(only_here.batches, what="the source")
    text = python(code, shipment.fd, shipment.nbytes, fds=(shipment.fd,))
    shipment.close()
    assert text.startswith(
        "the source cannot be unpickled in a worker process (ModuleNotFoundError: No module named"
    )
    assert "only_here" in text and "importable in a new process" in text


class Fails:
    def __setstate__(self, state: Any) -> None:
        raise RuntimeError("no licence")

    def __getstate__(self) -> dict[str, int]:
        return {"a": 1}


def test_what_fails_to_unpickle() -> None:
    with pytest.raises(
        OptionError, match="^transform= cannot be unpickled .*RuntimeError: no licence"
    ) as failed:
        unpacked = pack(Fails(), what="transform=")
        try:
            unpack(unpacked.fd, unpacked.nbytes)
        finally:
            unpacked.close()
    assert isinstance(pickle.loads(pickle.dumps(failed.value)), OptionError)


def test_a_failure_in_between_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Segment, "populate", full)
    with pytest.raises(OSError, match="No space"):
        pack(np.ones(MIB), what="the source")


def test_closing_twice_closes_nobody_elses_file() -> None:
    shipment = pack(1, what="the source")
    fd = shipment.fd
    shipment.close()
    other = os.open("/dev/null", os.O_RDONLY)
    shipment.close()
    assert os.fstat(other) and other == fd
    os.close(other)


def test_a_class_of_the_main_module_of_a_multiprocessing_child(tmp_path: Path) -> None:
    """Such as a rank that torch.multiprocessing.spawn starts."""
    (tmp_path / "ranks.py").write_text(
        """
import multiprocessing
from fastfeed import FeedRunner

class Record:
    def __init__(self, index): self.index = index

class Records:
    def __len__(self): return 4
    def __getitem__(self, index): return index

def rank():
    with FeedRunner(Records(), batch_size=2, processes=1) as runner:
        print([batch.tolist() for batch in runner], flush=True)
    with FeedRunner(map(Record, range(2)), processes=1, records=True, batch_size=2,
                    transform=lambda record: record.index) as runner:
        print([batch.tolist() for batch in runner], flush=True)

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=rank)
    child.start()
    child.join()
"""
    )
    found = subprocess.run(
        [sys.executable, "ranks.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert found.stdout.split("\n") == ["[[0, 1], [2, 3]]", "[[0, 1]]", ""], found.stderr
