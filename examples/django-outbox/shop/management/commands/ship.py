"""A worker as a command of Django, so that handlers have its models and settings."""

from typing import Any
from urllib.parse import quote, urlencode

from django.core.management.base import BaseCommand
from django.db import connection

import lockstep
from lockstep import Message


class Command(BaseCommand):
    help = "Ship what is ordered, until it is stopped."

    def handle(self, *_: Any, **__: Any) -> None:
        made = connection.get_connection_params()
        with lockstep.connect(dsn_of(made)) as client:

            @client.worker("orders", group="shipping", concurrency=2)
            def ship(message: Message) -> None:
                self.stdout.write(f"shipping {message.payload['item']} to {message.partition}")
                self.stdout.flush()

            client.run()


def dsn_of(names: dict[str, Any]) -> str:
    """Django's parameters of a connection as an address."""
    others = {name: names[name] for name in ("host", "port", "user", "password") if names.get(name)}
    return f"postgresql:///{quote(names['dbname'])}?{urlencode(others)}"
