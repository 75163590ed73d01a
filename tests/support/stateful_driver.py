"""Runs cases of stateful steps as a pipeline until what is there is done: `stateful_driver CHECKPOINTS MESSAGES SEED…`.

A program of its own, to be killed.
"""

from __future__ import annotations

import sys

from lockstep.spark import Pipeline
from lockstep.spark.session import spark_session
from support.stateful_cases import Case


def main(checkpoints: str, messages: str, *seeds: str) -> None:
    pipeline = Pipeline("cases")
    for seed in seeds:
        Case(int(seed), int(messages)).add_to(pipeline)
    with spark_session("stateful cases", master="local[2]") as spark:
        pipeline.run(spark, once=True, checkpoints=checkpoints)


if __name__ == "__main__":
    main(*sys.argv[1:])
