"""All routes, one module per noun."""

from lockstep.server.routes import (
    access,
    analytics,
    attention,
    dead_letters,
    delivery,
    engine,
    events,
    groups,
    health,
    leases,
    maintenance,
    messages,
    metrics,
    operations,
    pages,
    pipelines,
    queues,
    resources,
    schedules,
    status,
    streams,
    system,
    traces,
)
from lockstep.server.routing import Routes

_NOUNS = (
    health,
    metrics,
    delivery,
    queues,
    groups,
    dead_letters,
    schedules,
    traces,
    messages,
    resources,
    status,
    analytics,
    streams,
    operations,
    maintenance,
    system,
    pipelines,
    leases,
    attention,
    events,
    access,
    engine,
)

_routes = [route for noun in _NOUNS for route in noun.ROUTES]

ROUTES = Routes([*_routes, *pages.routes(_routes)], addresses=pages.ADDRESSES)
