"""Names of sites, consortia and hosts: one rule each, for every file and certificate that holds one."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from secfed.crypto.identity import MAX_NAME_BYTES
from secfed.errors import ConfigError

SITE_PATTERN: Final = r"^[a-z0-9][a-z0-9._-]{0,62}$"
HOST_PATTERN: Final = (
    r"^(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$"
)
CONSORTIUM_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,62}$"

AGGREGATOR: Final = "aggregator"  # the one party that is not a site; `consortium renew aggregator`

_SITE, _HOST, _CONSORTIUM = map(re.compile, (SITE_PATTERN, HOST_PATTERN, CONSORTIUM_PATTERN))


def check_site_name(name: str) -> str:
    """A name that is the same in a roster, a certificate, a file name and a log line.

    Lower case only: two sites whose names differ in case would be one to a reader.
    """
    if not _SITE.fullmatch(name) or len(name.encode()) > MAX_NAME_BYTES:
        raise ConfigError(
            f"site name {name[:80]!r} is not permitted",
            remedy="use 1 to 63 of a-z, 0-9, '.', '_' and '-', starting with a letter or digit",
        )
    if name == AGGREGATOR:
        raise ConfigError(f"site name {name!r} is taken by the aggregator", remedy="choose another name")
    return name


def check_consortium_name(name: str) -> str:
    """A name for people; it is the organisation in every certificate."""
    if not _CONSORTIUM.fullmatch(name):
        raise ConfigError(
            f"consortium name {name[:80]!r} is not permitted",
            remedy="use 1 to 63 letters, digits, spaces, '.', '_' and '-', starting with a letter or digit",
        )
    return name


def check_host(host: str) -> str:
    """A host name or an IP address in its usual spelling, as a client dials it; without a port."""
    address = ip_address(host)
    if address is not None:
        return str(address)
    # A last label of digits only is a mistyped IP address, never a name.
    if not _HOST.fullmatch(host.lower()) or host.rpartition(".")[2].isdigit():
        raise ConfigError(
            f"host {host[:80]!r} is neither a host name nor an IP address",
            remedy="write for example fl.example.org or 192.0.2.10, without a port or https://",
        )
    return host.lower()


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The host as an IP address, or None if it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
