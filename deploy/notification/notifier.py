"""Looks from time to time, and delivers, in threads of its own: nothing waits for a dead server.

One thread looks, and one for each channel delivers. An attempt that fails is made again after a pause that
grows; the outbox says for how long. Nothing that happens here reaches whoever started it, but for a line in
the log and a count.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from secfed.deploy.notification.channels import Channel, DeliveryFailed
from secfed.deploy.notification.outbox import Outbox, Seen

log = logging.getLogger("secfed.notification")

LOOK_S: Final = 10.0
PAUSES_S: Final = (10.0, 60.0, 300.0, 1800.0, 3600.0)  # after so many failures in a row; then the last again
_CLOSING_S: Final = 5.0  # what a channel does not take by then waits on the disk

SENT, FAILED = "notifications", "notification_failures"  # what is counted


class Notifier:
    """Tells people what ``look`` finds, from :meth:`start` to :meth:`close`.

    Args:
        look: the states that hold now; called by one thread.
        count: told ``SENT`` or ``FAILED`` for every attempt.
    """

    def __init__(
        self,
        outbox: Outbox,
        channels: Sequence[Channel],
        look: Callable[[], Seen],
        *,
        count: Callable[[str], None] = lambda _: None,
        look_s: float = LOOK_S,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self._outbox, self._look, self._count = outbox, look, count
        self._look_s, self._pauses_s = look_s, tuple(pauses_s)
        self._closing = threading.Event()
        self._looked = threading.Event()  # for the last time
        self._wakes = {channel.name: threading.Event() for channel in channels}
        self._blind = False  # the last look failed, and the log says so
        loops = [("look", self._look_on, ())]
        loops += [(channel.name, self._deliver_on, (channel,)) for channel in channels]  # type: ignore[misc]
        # Daemons: a server that keeps a thread waiting does not keep the process from ending.
        self._threads = [
            threading.Thread(target=loop, args=given, name=f"secfed-notify-{name}", daemon=True)
            for name, loop, given in loops
        ]

    def start(self) -> None:
        """Begin; returns at once."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Look once more, try once more, and end within seconds; what is left waits on the disk."""
        self._closing.set()
        end_s = time.monotonic() + _CLOSING_S
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))

    def _look_on(self) -> None:
        last = False
        while not last:
            last = self._closing.wait(0.0)
            try:
                if self._outbox.note(self._look()):
                    self._wake()
                self._blind = False
            except Exception as error:  # whatever it is, the agent goes on
                if not self._blind:
                    log.error("what people should know was not looked for: %s", error, exc_info=error)
                self._blind = True
            if not last:
                self._closing.wait(self._look_s)
        self._looked.set()
        self._wake()

    def _wake(self) -> None:
        for wake in self._wakes.values():
            wake.set()

    def _deliver_on(self, channel: Channel) -> None:
        wake, failures, last = self._wakes[channel.name], 0, False
        while not last:
            wake.clear()
            last = self._looked.is_set()
            try:
                failures = self._deliver_all(channel, failures)
            except Exception as error:  # as above
                log.error("by %s nothing was delivered: %s", channel.name, error, exc_info=error)
                failures += 1
            if last:
                return
            if failures:  # new messages do not shorten the pause
                self._closing.wait(self._pauses_s[min(failures, len(self._pauses_s)) - 1])
                if self._closing.is_set():
                    self._looked.wait()
            else:
                wake.wait()

    def _deliver_all(self, channel: Channel, failures: int) -> int:
        """Deliver what waits, up to the first failure; how many there were in a row."""
        while (message := self._outbox.next(channel.name)) is not None:
            try:
                said = channel.deliver(message)
            except DeliveryFailed as error:
                self._outbox.failed(channel.name, message)
                self._count(FAILED)
                level = logging.WARNING if not failures else logging.DEBUG  # once for each outage
                log.log(level, "not delivered by %s, and tried again: %s", channel.name, error)
                return failures + 1
            failures = 0
            self._outbox.delivered(channel.name, message)
            self._count(SENT)
            facts = {"kind": message.kind, "id": message.id, "channel": channel.name}
            log.info("delivered by %s: %s", channel.where, said, extra={"facts": facts})
        return failures
