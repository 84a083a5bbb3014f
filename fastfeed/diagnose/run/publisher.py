"""From a recording to its diagnosis, files and readers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastfeed.diagnose.anonymous import anonymised
from fastfeed.diagnose.diagnosis import Diagnosis
from fastfeed.diagnose.evidence_file import Recording, write_evidence


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


def _rank_path(path: Path | None, rank: int | None) -> Path | None:
    """Return a file name of its own for each of several ranks."""
    if path is None or rank is None:
        return path
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")
