"""Observer that turns the evidence about a script into a diagnosis and its reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fastfeed.diagnose.anonymous import anonymised
from fastfeed.diagnose.diagnosis import Diagnosis
from fastfeed.diagnose.evidence import ChildRate, DeadProducer, Evidence
from fastfeed.diagnose.evidence_file import Recording, write_evidence
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.run.collector import EvidenceCollector
from fastfeed.diagnose.run.report_request import ReportReason, ReportRequest
from fastfeed.probes.machine_log import Machine
from fastfeed.steps.timeline import Loop

DEAD_WAIT_S = 5.0  # without a step: a feed that was found dead still is


class Publisher:
    """Judges recordings, writes the files of reports, and passes each diagnosis and its files to
    `publish`.

    `evidence`: path of the recording; `anonymous`: without names of the user's own.
    """

    def __init__(
        self,
        publish: Callable[[Diagnosis, list[Path]], None],
        *,
        evidence: Path | None = None,
        anonymous: bool = False,
        **files: Path | None,
    ) -> None:
        self._publish = publish
        self._evidence_path = evidence
        self._anonymous = anonymous
        self._files = files  # by the kind of the report

    def report(self, recording: Recording, *, rank: int | None = None) -> None:
        """Judge a recording and publish the diagnosis. Raise OSError if a file is not written."""
        # These import numpy, which must not happen before the script has had a chance to set the
        # thread counts of its libraries.
        from fastfeed.diagnose.judge.judgement import judge
        from fastfeed.diagnose.report.writers import write_reports

        path = _rank_path(self._evidence_path, rank)
        if path is not None:  # first: whatever becomes of the judgement, this is for a bug report
            write_evidence(anonymised(recording) if self._anonymous else recording, path)
        diagnosis = judge(recording.evidence, script=recording.script, died=recording.died)
        files = {kind: _rank_path(path, rank) for kind, path in self._files.items()}
        written = write_reports(diagnosis, files) + ([path] if path is not None else [])
        self._publish(diagnosis, written)


class DiagnosisObserver:
    """Samples while a script runs, and has the publisher report what was seen."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._collector = EvidenceCollector()
        self._reported = False
        self._died: tuple[DeadProducer, ...] = ()

    def watch(self, log: HookLog) -> None:
        """Start sampling before the script starts."""
        self._collector.watch(log)

    def measure(self, start_s: float) -> None:
        """Start measuring."""
        self._collector.measure(start_s)

    def only_takes(self, loop: Loop) -> bool:
        """Return True if a loop only takes what others have made, such as results."""
        return self._collector.only_takes(loop)

    def report(self, request: ReportRequest) -> bool:
        """Judge, write the files and publish; return False if there is nothing to report yet."""
        reason = request.reason
        early = reason == ReportReason.STEPLESS and request.loop is None
        if self._reported or (early and not self._collector.sees_loop()):
            return False  # there will be another report, at the latest when the script ends
        if request.children:
            evidence = merged(request.children, self._collector.machine())
        else:
            evidence = self._collector.evidence(request)
        self._reported = request.final
        if self._reported:
            self._collector.stop()
        if reason in (ReportReason.DEAD, ReportReason.BLOCKED, ReportReason.CRASH):
            self._died = request.died
        ended = reason in (ReportReason.DEAD, ReportReason.CRASH)
        died = self._died if ended or request.waiting_now_s >= DEAD_WAIT_S else ()
        self._publisher.report(Recording(evidence, request.script, died), rank=request.rank)
        return True

    def stop(self) -> None:
        """Stop sampling, if no final report has."""
        self._collector.stop()


def _rank_path(path: Path | None, rank: int | None) -> Path | None:
    """Return a file name of its own for each of several ranks."""
    if path is None or rank is None:
        return path
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def merged(children: Sequence[Recording], machine: Machine) -> Evidence:
    """Return the evidence of the child with the median speed, and the speeds of all.

    `machine`: as the script's own process sees it, for which no child is another process.
    """
    from fastfeed.diagnose.judge.entries import ledger_of

    seen = [replace(one.evidence, machine=machine) for one in children]
    ledgers = [ledger_of(one) for one in seen]
    rates = tuple(
        ChildRate(child.script, len(one), len(one) / one.seconds if len(one) else 0.0)
        for child, one in zip(children, ledgers, strict=True)
    )
    ranked = sorted(range(len(rates)), key=lambda i: rates[i].steps_per_second)
    return replace(seen[ranked[(len(ranked) - 1) // 2]], children=rates)
