"""A script behaves under observation exactly as it does alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fastfeed.diagnose.run.launch import rank_of
from fastfeed.diagnose.run.lifecycle import WatchPlan
from fastfeed.errors import OptionError
from tests.diagnose.observing import Printing, ended, launched, observed

FACTS = """
import atexit, os, random, sys, threading
import numpy as np
from sibling import WHERE
print(__name__, __file__, __spec__, __package__, __cached__, type(__loader__).__name__)
print(sorted(globals()))
print(sys.argv, sys.path[0], os.getcwd(), WHERE, __builtins__.__name__)
print(sys.modules["__main__"].__file__)
print(threading.active_count(), threading.current_thread().name)
print(threading.excepthook is threading.__excepthook__)
random.seed(1); np.random.seed(1)
print(random.random(), np.random.rand())
atexit.register(print, "exit 1")
atexit.register(lambda: print("exit 2", flush=True))
"""
# The script may be the first to set the thread counts of these libraries.
LIBRARIES = "import sys; print({'numpy', 'cv2', 'torch', 'tensorflow', 'jax'} & sys.modules.keys())"
LATE = """
import threading, time
threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()
"""
POOL = """
import multiprocessing, pickle, sys
class Kept: pass
def square(n): return n * n, __name__, sys.argv
if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool: print(pool.map(square, [2, 3]))
    print(pickle.loads(pickle.dumps(square))(4), type(pickle.loads(pickle.dumps(Kept()))) is Kept)
"""
SIGNALS = """
import os, signal, sys, threading, time
def handler(number, frame):
    print("got", number, threading.current_thread() is threading.main_thread())
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, handler); os.kill(os.getpid(), number)
print(signal.getsignal(signal.SIGALRM), signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
FORK = """
import os, sys
pid = os.fork()
if pid: print("parent", os.waitpid(pid, 0)[1])
else: print("child", flush=True)
sys.exit(7 if pid == 0 else 5)
"""
ZOO = {
    "facts": (FACTS, ("--seconds", "5", "--json", "x"), 0),
    "libraries": (LIBRARIES, (), 0),
    "crash": ("import sys\ndef f(): return 1 / 0\nprint('before')\nf()\n", (), 1),
    "chained": (
        "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('b') from e\n",
        (),
        1,
    ),
    "syntax": ("x = 1\ny = = 2\n", (), 1),
    "text": ("import sys; print('out'); sys.exit('the reason')", (), 1),
    "number": ("import sys; sys.exit(259)", (), 3),
    "none": ("raise SystemExit", (), 0),
    "hook": (
        "import sys\nsys.excepthook = lambda *e: print('mine', e[0], e[2].tb_lineno, "
        "e[2].tb_next)\n1/0",
        (),
        1,
    ),
    "os._exit": (
        "import os, atexit; atexit.register(print, 'no'); print('out', flush=True); os._exit(3)",
        (),
        3,
    ),
    "interrupt": ("import atexit; atexit.register(print, 'exit'); raise KeyboardInterrupt", (), -2),
    "threads": (LATE, (), 0),
    "spawn": (POOL, ("spawn",), 0),
    "forkserver": (POOL, ("forkserver",), 0),
    "fork": (FORK, (), 5),
    "signals": (SIGNALS, (), 0),
}


@pytest.mark.parametrize("name", ZOO)
def test_exactly_as_without_us(name: str, tmp_path: Path) -> None:
    text, arguments, code = ZOO[name]
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "train.py").write_text(text)
    (folder / "sibling.py").write_text("import os; WHERE = os.path.basename(__file__)")
    script = ("./scripts/train.py", *arguments)
    alone = ended(sys.executable, *script, cwd=tmp_path)
    *seen, said = observed(*script, cwd=tmp_path)
    assert tuple(seen) == alone
    assert alone[0] == code
    assert [line["report"] for line in said if "report" in line] == ["train.py"]


def test_modules_code_and_standard_input(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("NAME = __name__")
    text = "import sys\nfrom package.other import NAME\n"
    text += "print(NAME, __name__, __spec__ and __spec__.name, sys.argv)\n"
    text += "print(sys.path[0], globals().get('__file__'), __package__)"
    (package / "__main__.py").write_text(text)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(
        "import sys; print(__name__, __spec__.name, sys.argv, sys.path[0])"
    )
    (tmp_path / "fails.py").write_text("def f(): return 1 / 0\nf()")
    ways = [
        ("-m", "package", "-m", "x"),
        ("-c", text, "--seconds", "5"),
        ("-", "a"),
        ("folder",),
        ("-m", "absent"),
        ("-m", "fails"),
    ]
    for words in ways:
        given = {"cwd": tmp_path, "input": text}
        assert observed(*words, **given)[:3] == ended(sys.executable, *words, **given), words


def test_a_leading_python_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print(sys.argv)")
    assert observed("python3.11", "-u", "train.py", "1", cwd=tmp_path)[:2] == (
        0,
        "['train.py', '1']\n",
    )


@pytest.mark.parametrize("words", [(), ("-m",), ("absent.py",), ("python",)])
def test_no_script(words: tuple[str, ...]) -> None:
    with pytest.raises(OptionError, match=r"no script|can't open 'absent.py'"):
        launched([*words], WatchPlan(), printing=Printing())


def test_one_of_several_ranks() -> None:
    assert rank_of({"RANK": "3", "WORLD_SIZE": "4"}) == 3
    assert rank_of({"RANK": "0", "WORLD_SIZE": "1"}) is None
    assert rank_of({}) is None
