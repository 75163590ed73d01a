"""Whom the server can be reached by, and whether anybody asks who they are."""

from __future__ import annotations

import logging
from ipaddress import IPv4Address, IPv6Address, ip_address

from lockstep.config import Config
from lockstep.errors import InvalidOption

logger = logging.getLogger("lockstep.server")


def auth_is_on(config: Config) -> bool:
    """Whether a request must say whose it is."""
    return config.auth == "required"


def address_in(text: str) -> IPv4Address | IPv6Address | None:
    """The IP address that a text is; None for a name. Of an IPv6 address that stands for an IPv4 one, the latter."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def is_loopback(host: str) -> bool:
    """Whether a host, as a name or an address, is this machine for everybody: such a name needs no look-up."""
    address = address_in(host)
    if address is not None:
        return address.is_loopback
    return host == "localhost" or host.endswith(".localhost")


def is_exposed(config: Config) -> bool:
    """Whether anybody who reaches the server over a network may use it."""
    return not auth_is_on(config) and not is_loopback(config.host)


def check_exposure(config: Config, address: str) -> None:
    """Raises InvalidOption if the server would serve anybody, and nobody has said that this is meant. `address` is the
    one that the socket is bound to."""
    if auth_is_on(config) or is_loopback(address):
        return
    if not config.insecure:
        raise InvalidOption(
            f"the server would listen on {address}, where others can reach it, and ask nobody who they are. "
            "Set auth to required, listen on 127.0.0.1, or give --insecure if everybody there may do everything"
        )
    logger.warning("server_insecure", extra={"action": "server_insecure", "address": address})
