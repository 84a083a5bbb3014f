"""A rank that prints its batches, and after the third one stays in its step until it is killed."""

from __future__ import annotations

import json
import sys

from fastfeed import FeedRunner


def main() -> None:
    address, producers = sys.argv[1:]
    with FeedRunner(range(20), batch_size=2, epochs=2, shard=address, **{producers: 1}) as runner:
        for number, batch in enumerate(runner, 1):
            print(json.dumps(batch.tolist()), flush=True)
            if number == 3:
                sys.stdin.read()


if __name__ == "__main__":
    main()
