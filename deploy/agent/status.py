"""What the agent is doing, for the people at its hospital: a file for ``secfed agent status``, and metrics.

Names, counts, sizes and times; never a value that came out of data. The file is for the agent's user only, as
alarms depend on records. Nothing depends on it: where it cannot be written, the log says so.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from secfed.deploy.policy.absence import Absence
from secfed.errors import ConfigError
from secfed.storage import private_files

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger("secfed.agent")

STATUS_FILE: Final = "status.json"
_MOST_LEFT: Final = 50  # exchanges that the file lists; the transcript has all of them

_STATES: Final = ("idle", "serving", "finished", *map(str, Absence))

# Name in the status -> metric, what it is.
_COUNTERS: Final = {
    "sums": ("secfed_agent_sums_total", "Secure sums that an update of this site was in"),
    "bytes_up": ("secfed_agent_sent_bytes_total", "Bytes of replies"),
    "bytes_down": ("secfed_agent_received_bytes_total", "Bytes of requests"),
    "refusals": ("secfed_agent_refusals_total", "Requests that this site refused"),
    "failures": ("secfed_agent_connection_failures_total", "Calls to the aggregator that failed"),
    "alarms": ("secfed_agent_alarms_total", "Contributions of which a part failed and added nothing"),
    "training_deaths": ("secfed_agent_training_deaths_total", "Training processes that died"),
    "notifications": ("secfed_agent_notifications_total", "Messages to people that a server took"),
    "notification_failures": (
        "secfed_agent_notification_failures_total",
        "Attempts to deliver a message that failed",
    ),
    "notifications_lost": ("secfed_agent_notifications_lost_total", "Messages that were given up"),
}


class StatusBoard:
    """The agent's status, in a file whose folder exists; safe for several threads."""

    def __init__(self, path: Path, site: str, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock, self._lock = path, clock, threading.Lock()
        self._sent_bytes = 0  # since the last sum
        self._unwritten = False  # the last try failed, and the log says so
        self._content: dict[str, Any] = {
            "version": 1,
            "site": site,
            "pid": os.getpid(),
            "started_s": int(clock()),
            "connection": "connecting",
            "study": None,
            "state": "idle",
            **dict.fromkeys(("round", "exchange", "stage", "rounds")),
            "working": False,
            **dict.fromkeys(("waits", "why", "policy_error", "last_error", "last_alarm")),
            "totals": dict.fromkeys(_COUNTERS, 0),
            "left": [],
        }
        self.set()

    def set(self, **facts: object) -> None:
        """Set facts, and write the file."""
        with self._lock:
            self._content.update(facts)
            self._write()

    def count(self, **counts: int) -> None:
        """Add to totals; the file is written with the next :meth:`set`."""
        with self._lock:
            for name, more in counts.items():
                self._content["totals"][name] += more
            self._sent_bytes += counts.get("bytes_up", 0)

    def error(self, text: str) -> None:
        """Note the last error."""
        self.set(last_error={"text": text, "time_s": int(self._clock())})

    def alarm(self, text: str) -> None:
        """Note that a part of this site's work failed and added nothing."""
        self.count(alarms=1)
        self.set(last_alarm={"text": text, "time_s": int(self._clock())})

    def left(self, entry: Mapping[str, object]) -> None:
        """Note that a sum with this site's update is complete."""
        with self._lock:
            self._content["totals"]["sums"] += 1
            told = {**entry, "bytes_up": self._sent_bytes}  # failed attempts included
            self._sent_bytes = 0
            self._content["left"] = [*self._content["left"], told][-_MOST_LEFT:]
            self._write()

    def snapshot(self) -> dict[str, Any]:
        """What the file says, also where it could not be written."""
        with self._lock:
            return dict(self._content)

    def collect(self) -> Iterator[Metric]:
        """The totals and the state, as a collector of ``prometheus_client`` gives them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        with self._lock:
            content, totals = dict(self._content), dict(self._content["totals"])
        for name, (metric, text) in _COUNTERS.items():
            yield CounterMetricFamily(metric, f"{text}.", value=totals[name])
        connected, serving = content["connection"] == "connected", content["state"] == "serving"
        yield GaugeMetricFamily("secfed_agent_connected", "Whether the last call succeeded.", value=connected)
        yield GaugeMetricFamily("secfed_agent_serving", "Whether a study is being served.", value=serving)
        states = GaugeMetricFamily(
            "secfed_agent_state", "What the agent does about the study.", labels=("state",)
        )
        for state in _STATES:
            states.add_metric((state,), content["state"] == state)
        yield states
        yield GaugeMetricFamily("secfed_agent_round", "Round of the study.", value=content["round"] or 0)

    def _write(self) -> None:
        self._content["time_s"] = int(self._clock())
        try:
            # Written with every message, and anew when the agent starts: not worth waiting for the disk.
            private_files.replace(self.path, private_files.to_json(self._content), synced=False)
        except (ConfigError, OSError) as error:
            if not self._unwritten:  # once, not with every message for as long as the disk is full
                log.warning("the status is not up to date, and the agent goes on: %s", error)
            self._unwritten = True
        else:
            self._unwritten = False


def read_status(path: Path) -> dict[str, Any] | None:
    """What the agent last wrote, or ``ConfigError``; None if it never ran."""
    return private_files.read_json(path, "the status of an agent") if path.exists() else None
