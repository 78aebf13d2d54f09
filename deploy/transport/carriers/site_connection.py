"""How an agent reaches the aggregator: over gRPC, or through Flower where ``site.toml`` names a socket."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

from secfed import __version__
from secfed.crypto.identity import Identity
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.transport.client import SiteConnection
from secfed.deploy.transport.flower.client import FlowerClient
from secfed.deploy.transport.grpc.client import GrpcSiteConnection
from secfed.deploy.transport.limits import ClientLimits

SOFTWARE: Final = f"secfed {__version__}"


class SiteCarrier(Protocol):
    """Makes links to the aggregator, one after the other."""

    address: str

    def dial(self, study: str, max_frame_bytes: int) -> SiteConnection:
        """A link for one study; with an empty name, to ask what is served."""
        ...

    def close(self) -> None:
        """There will be no more links."""
        ...


class GrpcCarrier:
    """Dials the aggregator."""

    def __init__(self, folder: SiteFolder, passphrase: str | None, limits: ClientLimits) -> None:
        self._folder, self._passphrase, self._limits = folder, passphrase, limits
        self.address = folder.address()

    def dial(self, study: str, max_frame_bytes: int) -> SiteConnection:
        """A new connection, with the certificate that is there now."""
        return GrpcSiteConnection(
            self.address,
            self._folder.tls_material(self._passphrase),
            study=study,
            max_frame_bytes=max_frame_bytes,
            proxy=self._folder.settings.aggregator.proxy,
            software=SOFTWARE,
            limits=self._limits,
        )

    def close(self) -> None:
        """Nothing: every link closes its own connection."""


class FlowerCarrier:
    """Waits for what Flower's app brings.

    Args:
        path: of the socket that its settings name; made with the first link.
    """

    def __init__(self, folder: SiteFolder, path: Path, identity: Identity, limits: ClientLimits) -> None:
        self._folder, self._path, self._identity, self._limits = folder, path, identity, limits
        self.address = str(path)
        self._client: FlowerClient | None = None

    def dial(self, study: str, max_frame_bytes: int) -> SiteConnection:
        """The agent's end of the client."""
        if self._client is None:
            self._client = FlowerClient(
                self._path, self._identity, self._folder.roster, software=SOFTWARE, limits=self._limits
            )
        return self._client.dial(study, max_frame_bytes)

    def close(self) -> None:
        """Remove the socket."""
        if self._client is not None:
            self._client.close()


def connect(
    folder: SiteFolder, identity: Identity, passphrase: str | None, limits: ClientLimits
) -> SiteCarrier:
    """What the site's settings name."""
    path = folder.flower_socket
    if path is None:
        return GrpcCarrier(folder, passphrase, limits)
    return FlowerCarrier(folder, path, identity, limits)
