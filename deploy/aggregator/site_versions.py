"""Which version each hospital says it runs: shown beside its name, and a warning where it is not this one.

All parties of a study compute the model's shape, the noise and the masks themselves, so they should run the
same version. What a hospital says is a name for the operator; nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from secfed.deploy.aggregator.measured_transport import Tell
from secfed.deploy.transport.link import Presence
from secfed.protection.interface import SiteId


class SiteVersions:
    """Adds versions to events, and tells of those that differ."""

    def __init__(self, presence: Callable[[], Mapping[SiteId, Presence]], tell: Tell, own: str) -> None:
        self._presence, self._tell, self._own = presence, tell, own
        self._warned: set[SiteId] = set()

    def tell(self, event: str, **facts: Any) -> None:
        """Pass an event on; one that lists sites also says what they run."""
        if "sites" in facts:
            known = self._presence()
            said = {site: known[site].software for site in facts["sites"] if site in known}
            facts["software"] = {site: software for site, software in said.items() if software}
        self._tell(event, **facts)
        self.look()

    def look(self) -> None:
        """Warn once of each site that says it runs another version."""
        for site, seen in self._presence().items():
            if seen.software not in ("", self._own) and site not in self._warned:
                self._warned.add(site)
                self._tell("version", site=site, software=seen.software, own=self._own)
