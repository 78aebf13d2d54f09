"""Masked protection against its own limit, against plain, and against Flower's SecAgg+, in one run.

The limit is the bare keystream-and-add loop over as many streams as the protocol needs, of the same cipher,
in the same chunk size and on all processors: nothing that masks with these streams can be faster on this
machine. Everything is measured in one process, alternating, and reported with the ratio.
"""

from __future__ import annotations

import platform
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from secfed.attack.scene import SimulatedConsortium
from secfed.bench.encrypted_site import encrypted_site_s
from secfed.crypto import lanes
from secfed.crypto.attempt import AttemptId
from secfed.crypto.codec import Buffer
from secfed.crypto.keystream import RoundingStream, StreamCipher, StreamKey, Workspace
from secfed.crypto.lanes import Run, VectorShape, pack_into
from secfed.crypto.masked import masks
from secfed.crypto.masked.client import MaskedSite
from secfed.crypto.masked.closing import Closing, closed_shape
from secfed.crypto.masked.masks import count_parts, parts_of
from secfed.crypto.masked.server import MaskedServer
from secfed.crypto.masked.threads import in_threads, processors
from secfed.crypto.messages import Upload
from secfed.runs.machine import processor
from secfed.wire.layout import Encoder, Field, Layout, Summands

_GROUP_KEY: Final = bytes(32)  # of the closed sums that are measured


class _NoJournal:
    """The durable journal costs two disk syncs per attempt; it is measured by tests, not here."""

    def begin(self, study: str, attempt: AttemptId) -> None:
        """Nothing."""

    uploaded = unmasked = begin


@dataclass
class _Timings:
    """Seconds of one full round without training."""

    site: dict[str, list[float]] = field(default_factory=dict)  # stage -> seconds, one per site
    receive: float = 0.0
    advance: dict[str, float] = field(default_factory=dict)
    upload_bytes: int = 0
    total_up_bytes: int = 0
    peak_extra_bytes: int = 0

    @property
    def total(self) -> float:
        return sum(map(sum, self.site.values())) + self.receive + sum(self.advance.values())


class BenchConsortium(SimulatedConsortium):
    """Sites with the same vector and no journal; the same in every process that makes it."""

    def __init__(
        self, parameters: int, sites: int, bits: int, cipher: StreamCipher = StreamCipher.CHACHA20
    ) -> None:
        fields = (Field("update", (parameters,), 1.0, bits), Field("weight", (), 1.0, 64))
        self.layout = Layout(fields, sites)
        super().__init__(sites, runs=self.layout.shape.runs, cipher=cipher)
        self.shape = self.layout.shape
        self.server: MaskedServer  # of the newest attempt
        generator = torch.Generator().manual_seed(0)
        values = torch.empty(parameters).normal_(0.0, 0.05, generator=generator)
        self.summands: Summands = {"update": values, "weight": 0.5}

    @property
    def uploaded_shape(self) -> VectorShape:
        """Of what a site uploads."""
        return self.shape

    def journal(self) -> _NoJournal:
        """None."""
        return _NoJournal()

    def encoder(self) -> Encoder:
        """The vector, quantised as it is read."""
        return self.layout.encoder(self.summands, RoundingStream())

    def session(self, name: str) -> MaskedSite:
        """One site's half."""
        return MaskedSite(self.contribution(name, source=self.encoder()))

    def run(self, drops: int, *, trace: bool = False) -> _Timings:
        """One whole attempt; the last ``drops`` sites go silent before they upload."""
        timings = _Timings()
        sessions = {name: self.session(name) for name in self.names}
        silent = set(self.names[len(self.names) - drops :])
        server = self.server = MaskedServer(
            self.specification(), self.roster, self.uploaded_shape, cipher=self.cipher
        )
        requests = server.begin()
        while requests:
            stage = server.stage
            for index, (site, message) in enumerate(requests.items()):
                if stage == "mask" and site in silent:
                    continue
                reply = self._handle(sessions[site], message, stage, timings, trace and index == 0)
                timings.total_up_bytes += len(reply)
                if stage == "mask":
                    timings.upload_bytes = len(reply)
                start = time.perf_counter()
                server.receive(site, reply)
                timings.receive += time.perf_counter() - start
                del reply
            start = time.perf_counter()
            requests = server.advance()
            timings.advance[stage] = time.perf_counter() - start
        return timings

    @staticmethod
    def _handle(session: MaskedSite, message: Buffer, stage: str, timings: _Timings, trace: bool) -> Buffer:
        if trace:
            tracemalloc.start()
        start = time.perf_counter()
        reply = session.handle(message)
        timings.site.setdefault(stage, []).append(time.perf_counter() - start)
        if trace:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            # The outgoing buffer is pages of the operating system, which tracemalloc does not see.
            peak += len(reply) if stage == "mask" else 0
            timings.peak_extra_bytes = max(timings.peak_extra_bytes, peak)
        return reply


class ClosedConsortium(BenchConsortium):
    """Sites that close their vectors, and open the sum."""

    @property
    def uploaded_shape(self) -> VectorShape:
        """Lanes and tags."""
        return closed_shape(self.shape)

    def session(self, name: str) -> MaskedSite:
        """One site's half."""
        return MaskedSite(self.contribution(name, source=self.encoder(), group_key=_GROUP_KEY))

    def open_s(self) -> float:
        """Seconds in which a site opens the sum of the newest attempt: streams off, tags checked."""
        server, spec, at = self.server, self.specification(), 0
        vector = memoryview(bytearray(self.uploaded_shape.wire_bytes))
        for run, summed in zip(self.uploaded_shape.runs, server.sums, strict=True):
            pack_into(summed, run, vector[at : at + run.wire_bytes])
            at += run.wire_bytes
        start = time.perf_counter()
        closing = Closing(_GROUP_KEY, spec.digest, server.adverts_digest, self.cipher)
        closing.opened(vector, server.survivors, spec.broadcast_digest, self.shape)
        return time.perf_counter() - start


def keystream_and_add(words: NDArray[np.uint32], streams: int, cipher: StreamCipher) -> float:
    """Seconds to add so many streams to a vector on all processors, a segment by whichever is free."""
    keys = [StreamKey(bytes([index % 256]) * 32, cipher) for index in range(streams)]
    run = Run(32, words.size)
    start = time.perf_counter()
    in_threads(parts_of(run, words), lambda part: _add_streams(keys, *part), at_most=count_parts(run))
    return time.perf_counter() - start


def _add_streams(keys: Sequence[StreamKey], index: int, words: NDArray[np.uint32]) -> None:
    workspace = Workspace(4 * lanes.CHUNK_ELEMENTS)
    streams = [key.segment(index) for key in keys]
    for at in range(0, words.size, lanes.CHUNK_ELEMENTS):
        chunk = words[at : at + lanes.CHUNK_ELEMENTS]
        for stream in streams:
            np.add(chunk, workspace.words(stream, chunk.size, np.dtype("<u4")), out=chunk)


def plain_protect(consortium: BenchConsortium) -> float:
    """Seconds to quantise, hash and lay out one vector without any mask."""
    shape, source = consortium.shape, consortium.encoder()
    out = Upload.frame(shape.wire_bytes)[Upload.VECTOR_AT : Upload.VECTOR_AT + shape.wire_bytes]
    start = time.perf_counter()
    masks.write_masked(source, [], masks.MaskContext(bytes(32), bytes(32), shape), out)
    return time.perf_counter() - start


def flower(vector: NDArray[np.float32], sites: int, drops: int) -> dict[str, float] | None:
    """Seconds of Flower's SecAgg+ client masking and server unmasking on the same vector.

    The library's own functions, in the order in which its client and its workflow call them
    (``secaggplus_mod._collect_masked_vectors``, ``secaggplus_workflow.unmask_stage``), with its defaults:
    22-bit quantisation, 32-bit modulus. Key agreement and secret sharing are left out on both sides.
    None if flwr is not installed.
    """
    try:
        from flwr.common import ndarray_to_bytes
        from flwr.common.secure_aggregation.ndarrays_arithmetic import (
            factor_combine,
            parameters_addition,
            parameters_mod,
            parameters_multiply,
            parameters_subtraction,
        )
        from flwr.common.secure_aggregation.quantization import dequantize, quantize
        from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
    except ImportError:
        return None
    start = time.perf_counter()
    masked: list[NDArray[Any]] = quantize(parameters_multiply([vector], 0.5), 8.0, 1 << 22)
    masked = factor_combine(1 << 21, masked)
    shapes = [part.shape for part in masked]
    for index in range(sites):
        mask = pseudo_rand_gen(index.to_bytes(32, "little"), 1 << 32, shapes)
        masked = parameters_addition(masked, mask) if index % 2 else parameters_subtraction(masked, mask)
    masked = parameters_mod(masked, 1 << 32)
    for part in masked:
        ndarray_to_bytes(part)
    client = time.perf_counter() - start
    start = time.perf_counter()
    survivors = sites - drops
    for index in range(survivors + drops * survivors):
        mask = pseudo_rand_gen(index.to_bytes(32, "little"), 1 << 32, shapes)
        masked = parameters_subtraction(masked, mask)
    masked = parameters_mod(masked, 1 << 32)
    dequantize(masked[1:], 8.0, 1 << 22)
    return {"client": client, "server": time.perf_counter() - start}


def measure(
    *,
    parameters: int,
    sites: int,
    drops: int = 0,
    bits: int = 32,
    repeats: int = 3,
    with_flower: bool = True,
    reveal: Literal["aggregator", "sites"] = "aggregator",
    keystream: StreamCipher = StreamCipher.CHACHA20,
    progress: Callable[[str], None] = lambda _text: None,
) -> dict[str, Any]:
    """Run the benchmark; JSON-ready. Each quantity is the median over ``repeats`` runs.

    ``drops`` sites go silent before they upload, in a second round. Where sites read the sums, they are
    closed and opened, and encrypted protection of the same vector is measured once.
    """
    progress("preparing")
    closed = ClosedConsortium(parameters, sites, bits, keystream) if reveal == "sites" else None
    consortium = closed or BenchConsortium(parameters, sites, bits, keystream)
    scratch = np.ones(parameters, np.uint32)  # written once: the first touch of a page is not part of a limit
    runs: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        runs.setdefault(name, []).append(seconds)

    def limit(name: str, streams: int, cipher: StreamCipher = keystream) -> None:
        note(name, keystream_and_add(scratch, streams, cipher))

    clean = dropped = _Timings()
    for repeat in range(repeats):
        progress(f"run {repeat + 1} of {repeats}")
        for cipher in StreamCipher:
            limit(f"limit_client_{cipher}", sites + (closed is not None), cipher)
        clean = consortium.run(0)
        note("client_protect", statistics.median(clean.site["mask"]))
        if closed is not None:
            limit("limit_open", sites)
            note("site_open", closed.open_s())
        limit("limit_server", sites)
        note("server_unmask", clean.advance["unmask"])
        note("server_receive", clean.receive)
        note("round_without_training", clean.total)
        note("plain_protect", plain_protect(consortium))
        if drops:
            dropped = consortium.run(drops)
            note("unmask_with_drops", dropped.advance["unmask"])
            limit("limit_drops", (sites - drops) * (1 + drops))
    progress("memory")
    traced = consortium.run(0, trace=True)
    seconds = {name: statistics.median(values) for name, values in runs.items()}
    seconds["limit_client"] = seconds[f"limit_client_{keystream}"]
    result: dict[str, Any] = {
        "parameters": parameters,
        "sites": sites,
        "drops": drops,
        "bits": bits,
        "keystream": keystream.value,
        "repeats": repeats,
        "machine": {
            "processor": processor(),
            "python": platform.python_version(),
            "threads": processors(),
        },
        "fraction_of_limit": {
            "client_protect": seconds["limit_client"] / seconds["client_protect"],
            "server_unmask": seconds["limit_server"] / seconds["server_unmask"],
        },
        "bytes_per_param": clean.upload_bytes / parameters,
        "bytes_per_param_with_handshake": clean.total_up_bytes / sites / parameters,
        "peak_extra_over_vector": traced.peak_extra_bytes / (4 * parameters),
        "seconds": seconds,
    }
    if closed is not None:
        result["fraction_of_limit"]["site_open"] = seconds["limit_open"] / seconds["site_open"]
        progress("encrypted")
        if (encrypted := encrypted_site_s(closed, closed.encoder)) is not None:
            seconds["encrypted_symmetric_site"] = encrypted
            own = seconds["client_protect"] + seconds["site_open"]
            result["speedup_vs_encrypted_symmetric"] = {"site": encrypted / own}
    if drops:
        streams = seconds["limit_drops"] / ((sites - drops) * (1 + drops))
        extra = seconds["unmask_with_drops"] - seconds["server_unmask"] * (sites - drops) / sites
        fraction = seconds["limit_drops"] / seconds["unmask_with_drops"]
        result["fraction_of_limit"]["unmask_with_drops"] = fraction
        result["streams_per_drop_per_survivor"] = extra / streams / drops / (sites - drops)
    if with_flower:
        progress("Flower SecAgg+")
        theirs = flower(np.asarray(consortium.summands["update"]), sites, 0)
        if theirs is not None:
            result["speedup_vs_flower"] = {
                "client": theirs["client"] / seconds["client_protect"],
                "client_at_limit": theirs["client"] / seconds["limit_client"],
                "server": theirs["server"] / seconds["server_unmask"],
            }
            seconds["flower_client"], seconds["flower_server"] = theirs["client"], theirs["server"]
    return result
