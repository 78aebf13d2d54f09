"""A site's half of the link over gRPC. It only dials out; one thread, one connection."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from secfed.crypto.codec import Buffer
from secfed.deploy.transport.chunking import ChunkedFrame, Reassembly
from secfed.deploy.transport.client import CallFailed, LinkRequest, SiteConnection, refusal_message
from secfed.deploy.transport.grpc.peer import TlsFiles, channel_credentials, grpc, readable
from secfed.deploy.transport.grpc.service import SERVICE
from secfed.deploy.transport.limits import ClientLimits
from secfed.deploy.transport.messages import PART_BYTES, HelloReply, HelloRequest, NextRequest, Part, Receipt
from secfed.errors import MalformedMessage, SecfedError

_REMEDIES: Final = {
    grpc.StatusCode.UNAVAILABLE: "check address, port, proxy and certificates; the aggregator may be down",
    grpc.StatusCode.PERMISSION_DENIED: "the study centre must renew the certificate or admit the site",
    grpc.StatusCode.FAILED_PRECONDITION: "the aggregator serves another study now: ask for its settings",
    grpc.StatusCode.UNIMPLEMENTED: "the other side runs another version of secfed",
}


class GrpcSiteConnection(SiteConnection):
    """One site's connection to ``address``, ``host:port``; the host must be in the aggregator's certificate.

    ``proxy`` is ``http://[user:password@]host:port`` of an HTTP proxy (CONNECT); None takes that of the
    environment.
    """

    def __init__(
        self,
        address: str,
        tls: TlsFiles,
        *,
        study: str = "",
        max_frame_bytes: int = PART_BYTES,
        proxy: str | None = None,
        software: str = "",
        limits: ClientLimits | None = None,
    ) -> None:
        super().__init__(study, max_frame_bytes, limits or ClientLimits())
        self._software = software
        self._channel = grpc.secure_channel(
            address, channel_credentials(tls), options=self._limits.options(proxy)
        )
        calls = f"/{SERVICE}/"
        self._hello = self._channel.unary_unary(calls + "Hello")
        self._next = self._channel.unary_stream(calls + "Next")
        self._answer = self._channel.stream_unary(calls + "Answer")
        self._refuse = self._channel.unary_unary(calls + "Refuse")

    def hello(self, *, looks: bool = False) -> HelloReply:
        """Show that the site is there, unless it only ``looks``; with the settings if no study is set."""
        with _failures():
            request = HelloRequest(self.study, self._software, looks)
            return HelloReply.decode(self._hello(request.encode(), timeout=self._limits.call_s))

    def next(self) -> LinkRequest | None:
        """Wait for the next request; None when there is nothing to do for now."""
        with _failures():
            stream = self._next(NextRequest(self.study).encode(), timeout=self._transfer_s)
            try:
                return self._assemble(stream)
            finally:
                stream.cancel()

    def answer(self, request_id: bytes, reply: Buffer) -> int:
        """Deliver a reply; the outcome of the receipt. May be repeated."""
        parcel = ChunkedFrame.wrap(self.study, request_id, reply)
        with _failures(unfit=True):
            return Receipt.decode(self._answer(parcel.parts(), timeout=self._transfer_s)).outcome

    def refuse(self, request_id: bytes, error: SecfedError) -> int:
        """Say that a request (or with an empty id: the study) is refused. May be repeated."""
        refusal = refusal_message(self.study, request_id, error)
        with _failures():
            return Receipt.decode(self._refuse(refusal.encode(), timeout=self._limits.call_s)).outcome

    def close(self) -> None:
        """End every call and :meth:`serve`; from any thread."""
        self._stopped.set()
        self._channel.close()

    @property
    def _transfer_s(self) -> float:
        parts = 2 + self.max_frame_bytes // PART_BYTES
        return 120.0 + parts * self._limits.part_timeout_s

    def _assemble(self, stream: Iterator[bytes]) -> LinkRequest | None:
        first = next(stream, None)
        if first is None:
            return None
        header = Part.decode(first).header
        if header is None or header.study != self.study:
            raise MalformedMessage("the request has no header, or is for another study")
        assembly = Reassembly(header, self.max_frame_bytes)
        for message in stream:
            assembly.add(message)
        return LinkRequest(header.study, header.request_id, assembly.finish())

    @contextmanager
    def alive(self) -> Iterator[None]:
        """While the site works, say from time to time that it is there."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(self._limits.heartbeat_s):
                try:
                    self.hello()
                except CallFailed:
                    continue  # the work goes on; its reply will be tried until it gets through

        thread = threading.Thread(target=beat, name="secfed-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()


@contextmanager
def _failures(*, unfit: bool = False) -> Iterator[None]:
    """Turn gRPC's errors, and frames that are not as announced, into :class:`CallFailed`."""
    try:
        yield
    except grpc.RpcError as error:
        code, details = error.code(), readable(error.details() or "")
        raise CallFailed(
            f"{code.name.lower().replace('_', ' ')}: {details[:300]}",
            remedy=_REMEDIES.get(code, ""),
            # Of the others with a remedy, somebody has to do something first.
            lasting=code in _REMEDIES and code is not grpc.StatusCode.UNAVAILABLE,
            unfit=unfit and code is grpc.StatusCode.INVALID_ARGUMENT,
        ) from None
    except ValueError:
        raise CallFailed("the connection is closed") from None  # gRPC's word for a closed channel
    except MalformedMessage as error:
        raise CallFailed(f"the aggregator sent what is not permitted: {error.message}") from None
