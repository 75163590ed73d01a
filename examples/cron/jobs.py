"""Recurring jobs: a cron expression pushes messages, a worker does the jobs, and a job that fails is tried again.

python examples/cron/jobs.py [url]       memory:// (the default), or postgresql://…
"""

import sys
import threading

import lockstep
from lockstep import Client, Message

QUEUE = "example.jobs"
# Six fields: with seconds. In earnest it would be five, such as "0 3 * * *", and a time zone.
CRONS = {"example.cleanup": "* * * * * *", "example.report": "*/2 * * * * *"}


def work(client: Client) -> set[str]:
    """Do jobs until each has been done once; returns their names."""
    done: set[str] = set()
    failed = threading.Event()

    @client.worker(QUEUE, group="jobs")
    def do(message: Message) -> None:
        name = message.payload["job"]
        if name == "report" and not failed.is_set():
            failed.set()
            raise RuntimeError("the report needs a table that is locked")
        done.add(name)
        if len(done) == len(CRONS):
            client.stop()

    client.run()
    return done


def main(url: str) -> None:
    with lockstep.connect(url) as client:
        client.delete_queue(QUEUE)  # what an earlier run left
        client.configure(QUEUE, retry_limit=3, retry_delay_ms=100)
        for name, expression in CRONS.items():
            job = name.rpartition(".")[2]
            # Each job has a partition of its own: one that fails does not hold up the other.
            client.set_cron(name, QUEUE, expression, {"job": job}, partition=job, timezone="Europe/Berlin")
        try:
            print("crons:", ", ".join(cron.name for cron in client.crons() if cron.name in CRONS))
            print("done:", ", ".join(sorted(work(client))))
        finally:
            for name in CRONS:
                client.remove_cron(name)
        print("left:", [cron.name for cron in client.crons() if cron.name in CRONS])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "memory://")
