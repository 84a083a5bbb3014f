"""Anonymous recordings: nothing of the user's own is left, and the judgement is the same."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from fastfeed.core.stats import Snapshot, StageRow
from fastfeed.diagnose.anonymous import anonymised
from fastfeed.diagnose.evidence import CALLED_BACK, PRODUCER, DeadProducer, Evidence, LoopPart
from fastfeed.diagnose.evidence_file import Recording, read_evidence, write_evidence
from fastfeed.diagnose.judge.judgement import judge
from fastfeed.probes.places import Place
from fastfeed.steps.timeline import Leaf, Mark
from tests.diagnose.evidences import any_evidence, cases, evidence, judged_case, loop_of, task

OWN = "zanzibar"


def named() -> Recording:
    """Return a recording with the user's names wherever there can be one."""
    place = Place(OWN, f"{OWN}/data.py", 41, users=True)
    loop = loop_of([40.0] * 100, where=f"{OWN}.py:12", note=f"{OWN} says", kind="watch")
    loop.name = f"for x in {OWN}"
    loop.leaves = (Leaf(f"batch['{OWN}']", "float32", (4,), f"{OWN}.Image"),)
    made = task(PRODUCER, {"sleep": 1.0}, stacks={(place,): 10}, exit=f"ValueError: {OWN}")
    found = evidence(
        loop,
        (replace(made, name=f"{OWN} reader"),),
        marks=[Mark("callback", 1.0, 1.1, OWN)],
        parts=(LoopPart("input", place, 0.5, inner=place),),
        missing=(f"no experiment: {OWN}",),
    )
    machine = replace(found.machine, noisy=((f"python {OWN}.py", 1.0),))
    feed = Snapshot(1.0, StageRow(), StageRow(), 0, 0, (), set_aside=(f"record of {OWN}",))
    found = replace(found, feed=feed)
    dead = DeadProducer(f"thread {OWN}", f"File {OWN}.py\nmine.{OWN}Error: {OWN}")
    return Recording(replace(found, machine=machine), f"{OWN}.py --key {OWN}", (dead,))


def test_nothing_of_the_users_own_is_left(tmp_path: Path) -> None:
    write_evidence(anonymised(named()), tmp_path / "evidence")
    text = gzip.decompress((tmp_path / "evidence").read_bytes()).decode()
    assert OWN not in text
    assert "data.py" not in text and read_evidence(tmp_path / "evidence").evidence.loop is not None


@pytest.mark.parametrize("name", cases())
def test_the_judgement_is_the_same(name: str) -> None:
    plain, hidden = judged_case(name), judge(anonymised(Recording(cases()[name])).evidence)
    assert hidden.verdict == plain.verdict
    assert [(c.code, c.share) for c in hidden.causes] == [(c.code, c.share) for c in plain.causes]
    assert [(r.knob, r.value, r.interval) for r in hidden.recommendations] == [
        (r.knob, r.value, r.interval) for r in plain.recommendations
    ]


@pytest.mark.slow
@settings(max_examples=4)  # a judgement takes up to 3 s of a core
@given(seen=any_evidence())
def test_any_evidence_can_be_anonymous(seen: Evidence) -> None:
    found = anonymised(Recording(seen, "train.py --lr 1")).evidence
    assert judge(found).verdict == judge(seen).verdict


def test_what_fastfeed_itself_says_stays() -> None:
    called = replace(task(PRODUCER, {"sleep": 1.0}), name=CALLED_BACK)
    loop = loop_of([1.0] * 30, note="tf.data: Prefetch of Map")
    found = anonymised(Recording(evidence(loop, (called,)))).evidence
    assert found.loop is not None and found.loop.note == "tf.data: Prefetch of Map"
    assert found.tasks[0].name == CALLED_BACK
