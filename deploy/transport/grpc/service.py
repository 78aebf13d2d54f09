"""The aggregator's side of the four calls of ``secfed_link.proto``.

Every call is taken as a stream of bytes, also those that carry one message: the caller is checked first,
and only then is anything read, with a timeout, and parsed. What a call may cost is bounded at the door
(calls per site, idle calls per second) and while it runs (time per part, bytes per reply, memory of
large replies). A long poll is a suspended coroutine, not a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from secfed.crypto.codec import Buffer
from secfed.deploy.transport.chunking import ChunkedFrame, Reassembly
from secfed.deploy.transport.grpc.mailbox import Mailbox, Room, Superseded
from secfed.deploy.transport.grpc.peer import PeerAuthenticator, grpc
from secfed.deploy.transport.limits import Allowance, ServerLimits
from secfed.deploy.transport.link import Offer, Refused, SiteReply
from secfed.deploy.transport.messages import (
    ACCEPTED,
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
from secfed.errors import MalformedMessage, PolicyRefused

SERVICE = "secfed.link.v1.Link"

log = logging.getLogger("secfed.wire.transport")

Context = Any  # grpc.aio.ServicerContext[bytes, bytes]
_REFUSAL_LINES = (20, 0.2)  # at once, and per second: a log that anybody can fill is of no use


class Calls:
    """The four calls. Lives in the server's event loop.

    Args:
        offer: what is served.
        authenticator: tells who calls.
        boxes: a mailbox per site.
        limits: what is allowed.
        tell: takes replies and refusals; must not block.
    """

    def __init__(
        self,
        offer: Offer,
        authenticator: PeerAuthenticator,
        boxes: dict[str, Mailbox],
        limits: ServerLimits,
        tell: Callable[[SiteReply | Refused], None],
    ) -> None:
        self._offer, self._authenticator, self._boxes = offer, authenticator, boxes
        self._limits, self._tell = limits, tell
        self._loop = asyncio.get_running_loop()
        self._room = Room(
            limits.answers_bytes,
            limits.answers,
            turn_s=limits.turn_s,
            bytes_per_s=limits.turn_bytes_per_s,
        )
        self._lines = Allowance(*_REFUSAL_LINES)
        self.declined: dict[str, Refused] = {}
        self.finished = False
        self.waits = Waits()  # replaced, never changed, by the round's thread
        self.told: set[str] = set()  # sites that were told that the study is finished

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
        async with self._call(context, is_sign=False) as (site, box):
            request = HelloRequest.decode(await self._read(context))
            if not request.looks:
                box.seen_s = self._loop.time()
            if request.study:
                await self._check_study(request.study, context)
            box.software = _printable(request.software)
            # A site that would not serve the study will not fetch its last request either.
            finished = self.finished and (box.request is None or site in self.declined)
            waits = self.waits.told()
            reply = self._offer.said(finished=finished, waits=waits, short=bool(request.study))
            if finished and not request.looks:
                self.told.add(site)
        return reply.encode()

    def finish(self, last: Mapping[str, ChunkedFrame]) -> None:
        """From now on there is nothing to do but the last requests; polls that wait end."""
        self.finished = True
        for site, box in self._boxes.items():
            box.finish(last.get(site))

    async def _next(self, _: object, context: Context) -> None:
        async with self._call(context) as (site, box):
            await self._check_study(NextRequest.decode(await self._read(context)).study, context)
            self.declined.pop(site, None)
            await box.polls.take(self._send(box, context))

    async def _send(self, box: Mailbox, context: Context) -> None:
        parcel = await box.wait(self._limits.poll_s)
        if parcel is None:
            return
        box.sending = True
        try:
            for part in parcel.parts():
                if box.request is not parcel:
                    raise Superseded
                async with asyncio.timeout(self._limits.part_timeout_s):
                    await context.write(part)
        finally:
            box.sending = False
        box.bytes_down += parcel.header.total_bytes
        if not box.fetched:
            box.fetched = True
            box.allowance.give_back()

    async def _answer(self, _: object, context: Context) -> bytes:
        async with self._call(context) as (site, box):
            header = Part.decode(await self._read(context)).header
            if header is None:
                raise MalformedMessage("a reply begins with its header")
            await self._check_study(header.study, context)
            outcome = ACCEPTED
            if box.waits_for(header.request_id):
                try:
                    await box.uploads.take(self._receive(site, box, header, context))
                except Superseded:
                    if box.waits_for(header.request_id):
                        raise
                    outcome = _closed(box, header.request_id)
            else:
                outcome = _closed(box, header.request_id)
        return Receipt(outcome).encode()

    async def _receive(self, site: str, box: Mailbox, header: Header, context: Context) -> None:
        assembly = Reassembly(header, self._offer.max_answer_bytes)
        came, release = await self._reserve(header.total_bytes, box)
        try:
            while not assembly.complete:
                assembly.add(await self._read(context))
            await self._read_end(context)
            frame = assembly.finish()
        except BaseException:
            came()
            release()
            raise
        came()
        box.take(header.request_id)
        box.bytes_up += header.total_bytes
        box.allowance.give_back()
        self._tell(SiteReply(site, header.request_id, frame, release))

    async def _refuse(self, _: object, context: Context) -> bytes:
        async with self._call(context) as (site, box):
            refusal = RefusalMessage.decode(await self._read(context))
            await self._check_study(refusal.study, context)
            refused = Refused(site, refusal.request_id, _printable(refusal.kind), _printable(refusal.reason))
            outcome = ACCEPTED
            if not refusal.request_id:
                self.declined[site] = refused
            elif box.waits_for(refusal.request_id):
                box.take(refusal.request_id)
                if refusal.kind == PolicyRefused.__name__:
                    self.declined[site] = refused  # until it asks for work again: nobody counts on it
                self._tell(refused)
            else:
                outcome = _closed(box, refusal.request_id)
        return Receipt(outcome).encode()

    @asynccontextmanager
    async def _call(self, context: Context, *, is_sign: bool = True) -> AsyncIterator[tuple[str, Mailbox]]:
        """Check the caller and what it may do; turn errors into statuses.

        Args:
            context: gRPC's.
            is_sign: whether the call shows, before it is read, that the site is there.
        """
        try:
            site = self._authenticator.caller(context.auth_context())
        except PolicyRefused as error:
            self._note("refused %s: %s", context.peer(), error.message)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, error.message)
        box = self._boxes[site]
        if box.open_calls >= self._limits.calls_per_site or not box.allowance.take(self._loop.time()):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls")
        box.open_calls += 1
        if is_sign:
            box.signs += 1
            box.seen_s = self._loop.time()
        try:
            yield site, box
        except MalformedMessage as error:
            self._note("site %s sent what is not permitted: %s", site, error.message)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
        except TimeoutError:
            self._note("site %s is too slow", site)
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "too slow")
        except Superseded:
            await context.abort(grpc.StatusCode.ABORTED, "given up for a newer call")
        finally:
            box.open_calls -= 1
            box.signs -= is_sign

    async def _check_study(self, study: str, context: Context) -> None:
        if study != self._offer.study:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "another study is served here")

    async def _read(self, context: Context) -> Buffer:
        async with asyncio.timeout(self._limits.part_timeout_s):
            message = await context.read()
        if message is grpc.aio.EOF:
            raise MalformedMessage("the stream ended too early")
        data: bytes = message
        return data

    async def _read_end(self, context: Context) -> None:
        async with asyncio.timeout(self._limits.part_timeout_s):
            if await context.read() is not grpc.aio.EOF:
                raise MalformedMessage("more was sent than announced")

    async def _reserve(self, size_bytes: int, box: Mailbox) -> tuple[Callable[[], None], Callable[[], None]]:
        """Wait until a reply of this size may be read.

        Returns:
            What to call when it has come; and, in any thread, when it has been used.
        """
        if size_bytes <= PART_BYTES:
            return (lambda: None), (lambda: None)
        stay = await self._room.take(size_bytes, box.give_way, box.gave_way)
        held = [size_bytes]

        def release() -> None:
            if held:
                self._room.give_back(held.pop())

        def from_any_thread() -> None:
            with suppress(RuntimeError):  # the loop is closed: the server was stopped
                self._loop.call_soon_threadsafe(release)

        return partial(self._room.came, stay), from_any_thread

    def _note(self, text: str, *values: str) -> None:
        if self._lines.take(self._loop.time()):
            log.warning(text, *values)


def _closed(box: Mailbox, request_id: bytes) -> int:
    return REPEATED if request_id == box.accepted else OVER


def _printable(text: str) -> str:
    """A site's words on one line, without control characters."""
    return "".join(char if char.isprintable() else " " for char in text)
