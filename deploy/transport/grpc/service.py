"""The aggregator's side of the four calls of ``messages.proto``.

Every call is taken as a stream of bytes: the caller is checked first, and only then is anything read, with a
timeout, and parsed. What a call may cost is bounded at the door (calls per site, idle calls per second) and
while it runs (time per part, bytes per reply, memory of large replies). A long poll is a coroutine, no
thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, cast

from secfed.crypto.codec import Buffer
from secfed.deploy.transport.chunking import ChunkedFrame, Reassembly
from secfed.deploy.transport.grpc.mailbox import Mailbox, Room, Superseded
from secfed.deploy.transport.grpc.peer import PeerAuthenticator, grpc, readable
from secfed.deploy.transport.limits import Allowance, ServerLimits
from secfed.deploy.transport.messages import (
    ACCEPTED,
    ANOTHER_STUDY,
    OVER,
    PART_BYTES,
    REPEATED,
    Header,
    HelloRequest,
    NextRequest,
    Part,
    Receipt,
    RefusalMessage,
)
from secfed.deploy.transport.progress import Waits
from secfed.deploy.transport.study_server import Offer, Refused, SiteReply, once, printable
from secfed.errors import MalformedMessage, PolicyRefused

SERVICE = "secfed.link.v1.Link"

log = logging.getLogger("secfed.wire.transport")

Context = Any  # grpc.aio.ServicerContext[bytes, bytes]
_REFUSAL_LINES = (20, 0.2)  # at once, and per second: a log that anybody can fill is of no use


class Calls:
    """The four calls, and what sites are asked: the requests of a ``StudyServer``.

    Once the server has started, only the thread of its event loop uses it.
    """

    def __init__(
        self,
        offer: Offer,
        authenticator: PeerAuthenticator,
        sites: Collection[str],
        limits: ServerLimits,
        deliver: Callable[[SiteReply | Refused], None],
    ) -> None:
        self._offer, self._authenticator, self._limits, self._deliver = offer, authenticator, limits, deliver
        self.sites = {site: Mailbox(Allowance(limits.burst, limits.calls_per_s)) for site in sites}
        self._room = Room(limits)
        self._lines = Allowance(*_REFUSAL_LINES)
        self.finished = False
        self.waits = Waits()
        self.informed: set[str] = set()

    def ask(self, frames: Mapping[str, ChunkedFrame]) -> None:
        """Ask these sites."""
        for site, frame in frames.items():
            self.sites[site].ask(frame)

    def withdraw(self) -> None:
        """Wait for no reply any more; uploads under way end."""
        for mailbox in self.sites.values():
            mailbox.withdraw()

    def finish(self, last: Mapping[str, ChunkedFrame]) -> None:
        """From now on there is nothing to do but the last requests; polls that wait end."""
        self.finished = True
        for site, mailbox in self.sites.items():
            mailbox.finish(last.get(site))

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a server is given."""
        methods = {
            "Hello": grpc.stream_unary_rpc_method_handler(self._hello),
            "Next": grpc.stream_stream_rpc_method_handler(self._next),
            "Answer": grpc.stream_unary_rpc_method_handler(self._answer),
            "Refuse": grpc.stream_unary_rpc_method_handler(self._refuse),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _hello(self, _: object, context: Context) -> bytes:
        async with self._call(context, is_sign=False) as (site, mailbox):
            request = HelloRequest.decode(await self._read(context))
            if not request.looks:
                mailbox.seen_s = time.monotonic()
            if request.study:
                await self._check_study(request.study, context)
            elif not request.looks:
                mailbox.serving = False
            mailbox.software = printable(request.software)
            # A site that would not serve the study will not fetch its last request either; one that has
            # failed may, as soon as it is put right.
            finished = self.finished and (mailbox.request is None or mailbox.gives_up)
            reply = self._offer.said(finished=finished, waits=self.waits, short=bool(request.study))
            if finished and not request.looks:
                self.informed.add(site)
        return reply.encode()

    async def _next(self, _: object, context: Context) -> None:
        async with self._call(context) as (_site, mailbox):
            await self._check_study(NextRequest.decode(await self._read(context)).study, context)
            mailbox.declined, mailbox.serving = None, True
            await mailbox.polls.take(self._send(mailbox, context))

    async def _send(self, mailbox: Mailbox, context: Context) -> None:
        frame = await mailbox.wait(self._limits.poll_s)
        if frame is None:
            return
        mailbox.sending = True
        try:
            for part in frame.parts():
                if mailbox.request is not frame:
                    raise Superseded
                async with asyncio.timeout(self._limits.part_timeout_s):
                    await context.write(part)
        finally:
            mailbox.sending = False
        mailbox.bytes_down += frame.header.total_bytes
        if not mailbox.fetched:
            mailbox.fetched = True
            mailbox.allowance.give_back()

    async def _answer(self, _: object, context: Context) -> bytes:
        async with self._call(context) as (site, mailbox):
            header = Part.decode(await self._read(context)).header
            if header is None:
                raise MalformedMessage("a reply begins with its header")
            await self._check_study(header.study, context)
            if mailbox.waits_for(header.request_id):
                try:
                    await mailbox.uploads.take(self._receive(site, mailbox, header, context))
                    return Receipt(ACCEPTED).encode()
                except Superseded:
                    if mailbox.waits_for(header.request_id):
                        raise
            return _closed(mailbox, header.request_id)

    async def _receive(self, site: str, mailbox: Mailbox, header: Header, context: Context) -> None:
        assembly = Reassembly(header, self._offer.max_answer_bytes)
        received, release = await self._reserve(header.total_bytes, mailbox)
        try:
            while not assembly.complete:
                assembly.add(await self._read(context))
            async with asyncio.timeout(self._limits.part_timeout_s):
                if await context.read() is not grpc.aio.EOF:
                    raise MalformedMessage("more was sent than announced")
            frame = assembly.finish()
        except BaseException:
            release()
            raise
        finally:
            received()
        mailbox.take(header.request_id)
        mailbox.bytes_up += header.total_bytes
        mailbox.allowance.give_back()
        self._deliver(SiteReply(site, header.request_id, frame, release))

    async def _refuse(self, _: object, context: Context) -> bytes:
        async with self._call(context) as (site, mailbox):
            refusal = RefusalMessage.decode(await self._read(context))
            await self._check_study(refusal.study, context)
            refused = Refused.of(site, refusal)
            if not refusal.request_id:
                mailbox.declined = refused
            elif mailbox.waits_for(refusal.request_id):
                mailbox.take(refusal.request_id)
                if refusal.kind == PolicyRefused.__name__:
                    mailbox.declined = refused  # until it asks for work again: nobody counts on it
                self._deliver(refused)
            else:
                return _closed(mailbox, refusal.request_id)
        return Receipt(ACCEPTED).encode()

    @asynccontextmanager
    async def _call(self, context: Context, *, is_sign: bool = True) -> AsyncIterator[tuple[str, Mailbox]]:
        """Check the caller and what it may do; turn errors into statuses."""
        try:
            site = self._authenticator.caller(context.auth_context())
        except PolicyRefused as error:
            self._note("refused %s: %s", readable(context.peer()), error.message)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, error.message)
        mailbox = self.sites[site]
        if mailbox.open_calls >= self._limits.calls_per_site or not mailbox.allowance.take(time.monotonic()):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls")
        mailbox.open_calls += 1
        if is_sign:
            mailbox.signs += 1
            mailbox.seen_s = time.monotonic()
        try:
            yield site, mailbox
        except MalformedMessage as error:
            self._note("site %s sent what is not permitted: %s", site, error.message)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
        except TimeoutError:
            self._note("site %s is too slow", site)
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "too slow")
        except Superseded:
            why = "given up for a newer call of this site; does its agent run twice?"
            await context.abort(grpc.StatusCode.ABORTED, why)
        finally:
            mailbox.open_calls -= 1
            mailbox.signs -= is_sign

    async def _check_study(self, study: str, context: Context) -> None:
        if study != self._offer.study:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{ANOTHER_STUDY} here")

    async def _read(self, context: Context) -> Buffer:
        async with asyncio.timeout(self._limits.part_timeout_s):
            message = await context.read()
        if message is grpc.aio.EOF:
            raise MalformedMessage("the stream ended too early")
        return cast("bytes", message)

    async def _reserve(
        self, size_bytes: int, mailbox: Mailbox
    ) -> tuple[Callable[[], None], Callable[[], None]]:
        """Wait until a reply may be read; what to call when it came, and when it was used (any thread)."""
        if size_bytes <= PART_BYTES:
            return (lambda: None), (lambda: None)
        stay = await self._room.take(size_bytes, mailbox.give_way, mailbox.gave_way)
        release = once(partial(self._room.give_back, size_bytes))
        loop = asyncio.get_running_loop()

        def from_any_thread() -> None:
            with suppress(RuntimeError):  # the loop is closed: the server was stopped
                loop.call_soon_threadsafe(release)

        return partial(self._room.received, stay), from_any_thread

    def _note(self, text: str, *values: str) -> None:
        if self._lines.take(time.monotonic()):
            log.warning(text, *values)


def _closed(mailbox: Mailbox, request_id: bytes) -> bytes:
    return Receipt(REPEATED if request_id == mailbox.accepted else OVER).encode()
