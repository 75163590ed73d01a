"""`lockstep`, or `python -m lockstep`, is the command line."""

import sys


def main() -> None:
    """Loading the command line takes a moment; Ctrl-C must end it quietly then, too."""
    try:
        from lockstep.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
