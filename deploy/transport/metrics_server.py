"""Metrics for Prometheus, served to this machine only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

from secfed.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_REQUEST_S: Final = 10.0  # for one request


class Collector(Protocol):
    """What a collector of ``prometheus_client`` has to have."""

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        ...


class MetricsServer:
    """Serves what collectors give; ``ConfigError``, naming the ``setting``, where the port is taken."""

    def __init__(self, port: int, *collectors: Collector, setting: str = "agent.metrics_port") -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        for collector in collectors:
            registry.register(collector)
        try:
            self._server, _ = start_http_server(port, "127.0.0.1", registry)
        except OSError as error:
            raise ConfigError(
                f"{setting}: {port}: {os.strerror(error.errno or 0)}",
                remedy="choose another port, or 0 for no metrics",
            ) from None
        handler = self._server.RequestHandlerClass
        # Otherwise whoever sends half a request holds a thread and a descriptor for ever.
        self._server.RequestHandlerClass = type("Handler", (handler,), {"timeout": _REQUEST_S})  # type: ignore[arg-type]
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # it prints tracebacks
        self.port = self._server.server_port

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
