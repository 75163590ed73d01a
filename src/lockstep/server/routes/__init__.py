"""All routes, one module per noun."""

from lockstep.server.routes import (
    analytics,
    dead_letters,
    engine,
    groups,
    health,
    maintenance,
    messages,
    metrics,
    operations,
    pages,
    queues,
    resources,
    schedules,
    status,
    stored_messages,
    streams,
    traces,
)
from lockstep.server.routing import Routes

_NOUNS = (
    health,
    metrics,
    messages,
    queues,
    groups,
    dead_letters,
    schedules,
    traces,
    stored_messages,
    resources,
    status,
    analytics,
    streams,
    operations,
    maintenance,
    engine,
)

_routes = [route for noun in _NOUNS for route in noun.ROUTES]

ROUTES = Routes([*_routes, *pages.routes(_routes)])
