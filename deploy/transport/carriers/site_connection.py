"""How an agent reaches the aggregator: over gRPC, or through Flower where ``site.toml`` names a socket."""

from __future__ import annotations

from typing import Final

from secfed import __version__
from secfed.crypto.identity import Identity
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.transport.client import SiteConnection
from secfed.deploy.transport.flower.client import FlowerClient
from secfed.deploy.transport.grpc.client import GrpcSiteConnection
from secfed.deploy.transport.limits import ClientLimits

SOFTWARE: Final = f"secfed {__version__}"


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


SiteCarrier = GrpcCarrier | FlowerClient


def connect(
    folder: SiteFolder, identity: Identity, passphrase: str | None, limits: ClientLimits
) -> SiteCarrier:
    """What the site's settings name: Flower's socket, or else the aggregator's address."""
    path = folder.flower_socket
    if path is None:
        return GrpcCarrier(folder, passphrase, limits)
    return FlowerClient(path, identity, folder.roster, software=SOFTWARE, limits=limits)
