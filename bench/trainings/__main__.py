"""Entry point of `python -m bench.trainings`."""

from bench.trainings.command import main

if __name__ == "__main__":
    main()
