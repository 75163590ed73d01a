"""Which routes a page may watch, and what they answer: requests that the server makes to itself."""

from __future__ import annotations

from lockstep.errors import Forbidden, InvalidRequest, LockstepError
from lockstep.server.auth.callers import Caller
from lockstep.server.exchange import Request, Response
from lockstep.server.failures import failure, unexpected
from lockstep.server.node import Node
from lockstep.server.routing import Routes


class WatchedRoutes:
    """The routes of a node that answer JSON and change nothing."""

    def __init__(self, node: Node, routes: Routes) -> None:
        self._node = node
        self._routes = routes

    def check(self, path: str, caller: Caller) -> Request:
        """The request for a path with its query string. Raises NoSuchRoute, InvalidRequest, Forbidden."""
        request = self._request(path)
        request.route, request.parameters = self._routes.find("GET", request.path)
        route = request.route
        if route.answers is None or route.level == "rw" or route.personal:
            raise InvalidRequest(
                f"{path[:200]} cannot be watched: it answers no JSON, it changes something, or it is about its caller"
            )
        if not caller.may_enter(request.route.rights):
            raise Forbidden(f"Insufficient permissions: {path[:200]} needs the right {request.route.rights[0]}")
        request.check_query()
        request.caller = caller
        return request

    def _request(self, path: str) -> Request:
        if not path.startswith("/") or not path.isascii():
            raise InvalidRequest(f"{path[:200]!r} is not a path: it begins with a slash and is percent-encoded")
        before, _, query_string = path.encode().partition(b"?")
        return Request("GET", before, query_string, {}, self._node.next_request_id())

    async def check_caller(self, caller: Caller) -> None:
        """Raises Unauthorized if the caller is not valid any more."""
        await self._node.guards.authentication.check(caller)

    async def ask(self, path: str, caller: Caller) -> Response:
        """The current answer of the route; an error is an answer, too."""
        request = self._request(path)
        try:
            request = self.check(path, caller)
            response: Response = await request.route.endpoint(self._node.seen_by(caller), request)
            return response
        except LockstepError as error:
            return failure(error, request, self._node.failures)
        except Exception as error:
            return unexpected(error, request)
