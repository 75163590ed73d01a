"""The application with a span around each request. It stands in for the plain one where the setting `tracing` is on."""

from __future__ import annotations

from lockstep.server.app import Application
from lockstep.server.exchange import Request, Response
from lockstep.tracing import answered, answering


class TracedApplication(Application):
    """Continues the trace of the client that sends a request."""

    async def respond(self, request: Request) -> Response | None:
        with answering(request.method, request.route.path, request.headers, request.id) as span:
            response = await super().respond(request)
            if response is not None:
                answered(span, response.status)
            return response
