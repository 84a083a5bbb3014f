"""Kill a training in the middle of an epoch; it continues with exactly the next batch.

    python examples/resume.py --crash 37                # die at step 37, and resume
    python examples/resume.py --crash 37 --processes 2  # resume with other producers

The model is one number, saved in one file with the state of the stream, so that both are of the
same step.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from fastfeed import FeedRunner, MissingExtra, OptionError

RECORDS, BATCH, STEPS = 1000, 32, 70  # an epoch is 32 steps


def main():
    args = options()
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "training.json"
        uninterrupted, model = train(Path(folder) / "other.json", threads=2)
        try:
            train(saved, threads=2, crash=args.crash)
        except Crash as crash:
            before = crash.args[0]
            print(f"crashed at step {len(before)}")
        after, resumed = train(saved, threads=args.threads, processes=args.processes)
    print(f"went on at step {STEPS - len(after)}: {len(after)} steps were left")
    print("the stream is the very same:", before[: STEPS - len(after)] + after == uninterrupted)
    print("and so is the model:", resumed == model)


class Crash(Exception):
    """Ends a training; holds the batches that it was trained on."""


def train(path, crash=None, **producers):
    """Return the batches that the model was trained on up to the last step, and the model. Continue
    from the file, if there is one."""
    saved = (
        json.loads(path.read_text()) if path.exists() else {"step": 0, "model": 0.0, "feed": None}
    )
    step, model = saved["step"], saved["model"]
    trained = []
    with FeedRunner(
        range(RECORDS), transform=augmented, batch_size=BATCH, shuffle=True, seed=7, **producers
    ) as runner:
        if saved["feed"] is not None:
            runner.restore(saved["feed"])
        for epoch in runner.epochs():
            for records, noise in epoch:
                if step == crash:
                    raise Crash(trained)
                model += float(records @ noise)
                step += 1
                trained.append((epoch.number, records.tolist(), noise.tolist()))
                if step % 10 == 0:
                    save(path, step=step, model=model, feed=runner.state())
                if step == STEPS:
                    return trained, model


def augmented(record, worker):
    """Return a record, and a random number that was drawn for it."""
    return record, worker.rng.normal()


def save(path, **values):
    """Replace the file atomically: after a crash it has its old content."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(values))
    os.replace(new, path)


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--crash",
        type=int,
        default=37,
        metavar="STEP",
        help=f"die before this step, 0 to {STEPS - 1}",
    )
    parser.add_argument(
        "--threads", type=int, default=3, help="producer threads after the crash (3; before it 2)"
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=0,
        help="worker processes after the crash (0: threads alone)",
    )
    args = parser.parse_args()
    if not 0 <= args.crash < STEPS:
        parser.error(f"--crash {args.crash}: must be a step from 0 to {STEPS - 1}")
    return args


if __name__ == "__main__":
    try:
        main()
    except (OptionError, MissingExtra) as error:  # of an argument, and its way out
        sys.exit(str(error))
