"""Spark pipelines: the status of their steps, and the results of jobs."""

from __future__ import annotations

from msgspec import Struct

from lockstep.core.wire.pages import Limit
from lockstep.core.wire.pipelines import JobRunsAnswer, PipelinesAnswer, job_runs_answer, pipelines_answer
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.node import Node
from lockstep.server.routing import Route


class PipelinesQuery(Struct, frozen=True):
    pipeline: str | None = None


async def pipelines(node: Node, request: Request) -> Response:
    query = request.query(PipelinesQuery)
    return answer(pipelines_answer(await node.engine.pipeline_steps(pipeline=query.pipeline or None)))


class JobRunsQuery(Struct, frozen=True):
    limit: Limit = 100


async def job_runs(node: Node, request: Request) -> Response:
    return answer(job_runs_answer(await node.engine.job_runs(limit=request.query(JobRunsQuery).limit)))


ROUTES = [
    Route(
        method="GET",
        path="/api/v1/pipelines",
        endpoint=pipelines,
        summary="The steps of Spark pipelines that have run, and how they are doing",
        right="browse",
        query=PipelinesQuery,
        answers=PipelinesAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/pipelines/jobs",
        endpoint=job_runs,
        summary="What jobs on Spark wrote to archives and statistics, newest first",
        right="browse",
        query=JobRunsQuery,
        answers=JobRunsAnswer,
    ),
]
