"""Photographs: decode, a random part resized to 224 x 224, half of them flipped, batches of 64.

    python -m bench.photos [--quick] [--photos DIR] [--output build/photos]

The same operations by fastfeed with each of its executors, by DALI alone, tf.data, DataLoader,
Grain, SPDL and Keras, and by a pool of threads as one would write it. Where there is a GPU, DALI
runs there, too.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from bench import photo_peers  # noqa: F401  # they register themselves
from bench.command import chosen, measure, options, parsed
from bench.results import Row
from bench.rounds import Cell
from bench.scaling import PHOTO_BATCH, photos_in
from bench.workloads import Photos, to_json

OURS = [
    # the same operations written by hand, in our processes and threads
    *("fastfeed", "fastfeed, threads"),
    "fastfeed, augment in threads",
    "fastfeed, augment in processes",
    "fastfeed, dali-cpu",
    "fastfeed, dali-gpu",
]
ALONE = ["dali, alone", "dali, alone on the GPU"]
OTHERS = ["thread pool", "tf.data, native", "torch", "grain", "spdl", "keras", "dali"]
WORKERS = (1, 2)
WITH_GPU = {"fastfeed, dali-gpu", "dali, alone on the GPU"}


def main() -> None:
    parser = options("photos", __doc__.splitlines()[0])
    parser.add_argument(
        "--photos", help="a folder of .jpg files (default: photos in $FASTFEED_DATA or shared/data)"
    )
    parser.add_argument("--gpu", action="store_true", help="also what needs a GPU")
    parser.add_argument(
        "--workers",
        type=int,
        nargs="*",
        default=list(WORKERS),
        help="producers, or threads of a library",
    )
    given = parsed(parser)
    names = [name for name in (*OURS, *ALONE, *OTHERS) if given.gpu or name not in WITH_GPU]
    with photos_in(given.photos) as folder:
        work = to_json(Photos(PHOTO_BATCH, folder=str(folder)))
        run = {"measure": "rate", "work": work, "warm_s": given.warm_s, "seconds": given.seconds}
        cells = [
            Cell(
                Row(f"photographs, workers: {n}", name, n, "images/s"),
                {**run, "peer": name, "workers": n},
                PHOTO_BATCH[0],
            )
            for n in given.workers
            for name in chosen(names, given)
        ]
        measure("photos", cells, given, finish=_beside)


def _beside(rows: list[Row]) -> list[Row]:
    """Add to each DALI in fastfeed its share of the rate of DALI alone, in the same round."""
    found = []
    for row in rows:
        rival = {"fastfeed, dali-cpu": ALONE[0], "fastfeed, dali-gpu": ALONE[1]}.get(row.peer)
        alone = next((r for r in rows if (r.table, r.peer) == (row.table, rival)), None)
        if alone is not None and row.values and len(alone.values) == len(row.values):
            share = median(mine / its for mine, its in zip(row.values, alone.values, strict=True))
            row = replace(row, also=f"{share:.2f} of DALI alone in the same round")
        found.append(row)
    return found


if __name__ == "__main__":
    main()
