"""What the link allows itself and its peers: timeouts, counts, and how gRPC is told of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from secfed.deploy.transport.messages import MAX_MESSAGE_BYTES

Option = tuple[str, int | str]

_MAX_METADATA_BYTES: Final = 8192
_SHARED: Final[tuple[Option, ...]] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
    # Masked and encrypted bytes do not shrink, and a megabyte can be made to inflate to a gigabyte.
    ("grpc.per_message_compression", 0),
    ("grpc.per_message_decompression", 0),
    ("grpc.compression_enabled_algorithms_bitset", 1),
)


@dataclass(frozen=True)
class ServerLimits:
    """Limits of the aggregator's half."""

    poll_s: float = 45.0  # longest that a poll waits; below the 60 s after which proxies tend to cut
    # For one part (1 MiB) in either direction: the least speed of a peer is 1 MiB in this time.
    part_timeout_s: float = 60.0
    # Memory for replies above one part, from their first byte until the round has used them; those beyond it
    # wait unread. One always fits, however large. Smaller replies come on top: at most one a site.
    answers_bytes: int = 1 << 30
    answers: int | None = None  # so many replies above one part instead, whatever their size
    # While others wait for that memory, a reply may take so long, and as long as its size needs at this
    # speed; then it gives way, and its site begins it again.
    turn_s: float = 30.0
    turn_bytes_per_s: float = 1 << 20
    calls_per_site: int = 6  # open at one time
    # Idle calls of a site at once, and per second; one that fetches new work or delivers it is not counted.
    burst: int = 40
    calls_per_s: float = 2.0
    handshake_s: float = 10.0  # for a connection to prove who it is
    connection_age_s: float = 3600.0  # after which a connection is asked to come back and prove itself anew
    # At one time, those included that have proved nothing yet; None: 100 and 10 a site.
    connections: int | None = None

    def options(self, sites: int) -> tuple[Option, ...]:
        """Channel arguments of the server."""
        connections = 100 + 10 * sites if self.connections is None else self.connections
        return (
            *_SHARED,
            ("grpc.so_reuseport", 0),  # a second aggregator on the port would take half of the sites
            ("grpc.max_concurrent_streams", self.calls_per_site),
            ("grpc.max_allowed_incoming_connections", connections),
            ("grpc.server_handshake_timeout_ms", _ms(self.handshake_s)),
            ("grpc.max_connection_idle_ms", 120_000),  # without calls
            ("grpc.max_connection_age_ms", _ms(self.connection_age_s)),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 15_000),
            ("grpc.http2.max_ping_strikes", 2),
        )


@dataclass(frozen=True)
class ClientLimits:
    """Limits of a site's half."""

    call_s: float = 30.0  # for a short call
    part_timeout_s: float = 60.0  # for one part on average; with the cap on frames, deadline of a transfer
    heartbeat_s: float = 15.0  # while the site works, it shows this often that it is there
    backoff_s: float = 0.5  # first pause after a failure, before jitter
    backoff_cap_s: float = 60.0  # longest

    def options(self, proxy: str | None) -> tuple[Option, ...]:
        """Channel arguments of a site; without ``proxy``, the environment's proxy is used."""
        return (
            *_SHARED,
            *((("grpc.http_proxy", proxy),) if proxy else ()),
            ("grpc.enable_retries", 0),  # what is repeated, and when, is decided here
            ("grpc.service_config_disable_resolution", 1),
            ("grpc.initial_reconnect_backoff_ms", _ms(self.backoff_s)),
            ("grpc.min_reconnect_backoff_ms", 10_000),  # longest that one connection attempt may take
            ("grpc.max_reconnect_backoff_ms", _ms(self.backoff_cap_s)),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.http2.max_pings_without_data", 0),
        )


@dataclass
class Backoff:
    """Pauses that grow, each drawn evenly from zero to its bound ("full jitter").

    Source: Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    """

    first_s: float
    cap_s: float
    failures: int = 0
    _random: random.Random = field(default_factory=random.SystemRandom, repr=False)

    def next_s(self) -> float:
        """Seconds to wait after one more failure."""
        bound = min(self.cap_s, self.first_s * 2.0 ** min(self.failures, 32))
        self.failures += 1
        return self._random.uniform(0.0, bound)


@dataclass
class Allowance:
    """A token bucket: so many calls at once, so many per second."""

    burst: int
    per_s: float
    _tokens: float = field(init=False)
    _at_s: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._tokens = float(self.burst)

    def take(self, now_s: float) -> bool:
        """Take one token; False if there is none."""
        if self._at_s is not None:
            self._tokens = min(self.burst, self._tokens + (now_s - self._at_s) * self.per_s)
        self._at_s = now_s
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def give_back(self) -> None:
        """The call was of use."""
        self._tokens = min(self.burst, self._tokens + 1.0)


def _ms(seconds: float) -> int:
    return max(1, round(1000 * seconds))
