"""Fork of the trainer while a runner lives: the copy can do no harm, and it keeps nothing alive."""

from __future__ import annotations

import signal

import pytest

from tests.helpers.scripts import Start

STRICT = ("-W", "error")

# The child holds copies of views, of the runner and of every descriptor; the parent's batches must
# stay right.
FORKED = """
    import random
    def stream():
        for i in range(4_000):
            yield np.full((4, 100), i)

    runner, reader = started(stream, processes=1)
    held = [next(reader) for _ in range(3)]

    def child():
        {child}

    pid = os.fork()
    if pid == 0:
        child()
        os._exit(0)
    say("tree", pid)
    expected = 4
    for batch in reader:
        assert (batch == expected).all(), (batch, expected)
        expected += 1
    assert [int(b[0, 0]) for b in held] == [1, 2, 3] and all((b == b[0, 0]).all() for b in held)
    assert expected == 4_000
    os.waitpid(pid, 0)
    say("right")
    """


TAKES = """
        try:
            next(reader)
        except Exception as error:
            say("child:", type(error).__name__)
        """.strip()
READS = """
        with FeedRunner(stream, processes=1) as own:
            say("child:", sum(1 for _ in own))
        """.strip()


@pytest.mark.parametrize(
    ("child", "said"),
    [
        *(
            pytest.param(child, "", marks=pytest.mark.slow)
            for child in (
                "held.clear(); gc.collect()",
                "runner.stop()",
                "sys.exit(0)",
                "global runner, reader; del runner, reader; gc.collect()",
                "runner.snapshot()",
            )
        ),
        (TAKES, "child: StateError"),
        (READS, "child: 4000"),
    ],
)
def test_a_child_can_do_no_harm(script: Start, child: str, said: str) -> None:
    """It would take the parent's batches, and has no worker; it can have a runner of its own."""
    running = script(FORKED.replace("{child}", child), python=STRICT)
    assert said in "\n".join(running.ends_quietly("right").out)


LIVING = """
    runner, reader = started()
    others = below(os.getpid())
    {start}
    say("child", pid)
    {end}
    """
CHILDREN = {
    "fork": "pid = os.fork() or (signal.pause(), os._exit(0))",
    "multiprocessing": "child = multiprocessing.get_context('fork').Process("
    "target=signal.pause, daemon=True)\n"
    "    child.start(); pid = child.pid",
    "subprocess": "pid = subprocess.Popen(['sleep', '100'], stdin=subprocess.DEVNULL, "
    "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid",
    "subprocess that inherits": "pid = subprocess.Popen(['sleep', '100'], close_fds=False).pid",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHILDREN)
@pytest.mark.parametrize("end", ["stop", "SIGKILL"])
def test_children_that_live_on_keep_no_worker(script: Start, kind: str, end: str) -> None:
    """They hold copies of pipes and sockets, so workers must not rely on an end of file."""
    stop = (
        "runner.stop(); os.kill(pid, 9); os.waitpid(pid, 0)" if end == "stop" else "signal.pause()"
    )
    running = script(
        LIVING.replace("{start}", CHILDREN[kind]).replace("{end}", stop), python=STRICT
    )
    running.line("tree")
    child = int(running.line("child"))
    if end == "SIGKILL":
        running.signal(signal.SIGKILL)
        running.gone()
        running.signal_other(child, signal.SIGKILL)
    assert running.ended().code == (0 if end == "stop" else -signal.SIGKILL)


def test_descriptors_do_not_leak_into_other_programs(script: Start) -> None:
    """Neither the trainer's nor the worker's: a program that inherits everything has the three
    standard streams, and the folder itself."""
    script(
        """
        def descriptors():
            listing = ["ls", "/proc/self/fd"]
            return subprocess.run(listing, close_fds=False, capture_output=True).stdout.split()
        def stream():
            seen = descriptors()
            while True:
                yield np.full(4, len(seen))
        runner = FeedRunner(stream, processes=1)
        in_worker = int(next(iter(runner))[0])
        seen = descriptors()
        runner.stop()
        print(in_worker, len(seen))
        """,
        python=STRICT,
    ).ends_quietly("4 4")
