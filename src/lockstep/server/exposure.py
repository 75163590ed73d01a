"""Who can reach the server, and whether it authenticates callers."""

from __future__ import annotations

import logging
from ipaddress import IPv4Address, IPv6Address, ip_address

from lockstep.config import Config
from lockstep.errors import InvalidOption

logger = logging.getLogger("lockstep.server")


def auth_is_on(config: Config) -> bool:
    """Whether requests must be authenticated."""
    return config.auth == "required"


def address_in(text: str) -> IPv4Address | IPv6Address | None:
    """The IP address in a text; None for a name. An IPv6 address that maps an IPv4 address yields the latter."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def is_loopback(host: str) -> bool:
    """Whether a host, given by name or address, always means this machine: such a name needs no look-up."""
    address = address_in(host)
    if address is not None:
        return address.is_loopback
    return host == "localhost" or host.endswith(".localhost")


def is_exposed(config: Config) -> bool:
    """Whether anybody who reaches the server over a network may use it."""
    return not auth_is_on(config) and not is_loopback(config.host)


def check_exposure(config: Config, address: str) -> None:
    """Raises InvalidOption if the server would serve anybody without an explicit setting. `address` is that of the
    bound socket."""
    if auth_is_on(config) or is_loopback(address):
        return
    if not config.insecure:
        raise InvalidOption(
            f"the server would listen on {address}, where others can reach it, and ask nobody who they are. "
            "Set auth to required, listen on 127.0.0.1, or give --insecure if everybody there may do everything"
        )
    logger.warning("server_insecure", extra={"action": "server_insecure", "address": address})
