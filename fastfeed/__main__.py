"""`python -m fastfeed`: the command `fastfeed`, without its script on the path."""

from fastfeed.cli import main

if __name__ == "__main__":
    main(prog_name="fastfeed")
