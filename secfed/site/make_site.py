"""The site's side of a study, as its protection wants it: the same call in hospitals and simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from secfed.algorithms.framework.base import ServerProgram
from secfed.errors import WrongState
from secfed.protection.encrypted import Encrypted
from secfed.protection.interface import Protection
from secfed.site.session import Site
from secfed.wire.layout import State


def make_site(
    protection: Protection, *, start: Callable[[], State | None] | None = None, **arguments: Any
) -> Site:
    """Make one site.

    Args:
        protection: the study's.
        start: gives the model that the study begins with, to a site that replays the server program; None
            for the seed's.
        arguments: those of :class:`secfed.site.session.Site`.
    """
    if isinstance(protection, Encrypted):
        from secfed.site.encrypted_session import EncryptedSession  # TenSEAL is an optional dependency

        return EncryptedSession(protection=protection, start=start, **arguments)
    return Site(protection=protection, **arguments)


def newest_replica(sites: Iterable[Site]) -> ServerProgram:
    """The server program of the site that has taken most sums; simulation only."""
    newest = max(sites, key=lambda site: site.sums, default=None)
    if newest is None or newest.replica is None:
        raise WrongState("there is no site to read the state from")
    return newest.replica
