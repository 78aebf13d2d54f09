"""What Flower runs: couriers that are part of secfed, which is installed where they run."""

from secfed.deploy.transport.flower.server_app import client_app, server_app

__all__ = ["client_app", "server_app"]
