"""A program that runs an embedded PostgreSQL, for tests to kill.

    embedded_host.py DATA_DIR

It prints a JSON object per line: its progress, then the DSN or the error. It ends when its input ends.
"""

from __future__ import annotations

import json
import sys

from lockstep.errors import LockstepError
from lockstep.storage.postgres.embedded import EmbeddedPostgres


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def main(data_dir: str) -> None:
    server = EmbeddedPostgres(data_dir, on_progress=lambda text: say(progress=text))
    try:
        dsn = server.start()
    except LockstepError as error:
        say(error=type(error).__name__, message=error.message, details=error.details)
        return
    say(dsn=dsn)
    # No stop here: that the exit handler does it is part of what is tested.
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
