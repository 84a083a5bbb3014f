"""Entry point of `python -m bench.public`."""

from bench.public.command import main

if __name__ == "__main__":
    main()
