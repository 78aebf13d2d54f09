"""Worker processes for encrypted protection. Frames travel through shared memory, only their names by pipe.

The library holds Python's interpreter lock, so more than one core needs more than one process. A frame lies
in one *place* of a small memory that parent and workers share, and its result replaces it; places bound the
memory. Workers are started with ``spawn``: they inherit no memory, no locks and no descriptors but those
given to them, and a script that asks for them keeps its own start behind ``if __name__ == "__main__":``. Each
has a pipe of its own and no lock is shared: whoever is killed, the other side sees the end of the pipe.

Security: plaintext lanes lie in the shared memory. It has no name (``memfd_create``), so no other process
can open it, and it is gone with the last process that holds it. Nothing is written to a disk.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from mmap import mmap
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import assert_spawning
from multiprocessing.reduction import DupFd
from typing import Any, Final

from secfed.crypto.codec import Buffer
from secfed.crypto.encrypted.bfv import FRAME_CIPHERTEXTS, HE_STANDARD
from secfed.crypto.encrypted.frames import FrameCipher, Job, Work
from secfed.crypto.encrypted.study_keys import KeyPair
from secfed.errors import ConfigError, MalformedMessage, RoundAborted, SecfedError, WrongState

# A frame of the largest ring with 64-bit words. Words on the wire have 60 bits at most, so that leaves
# 64 KiB for the header and the seeds.
_PLACE_BYTES: Final = FRAME_CIPHERTEXTS * 2 * max(HE_STANDARD) * 8
_PLACES_PER_WORKER: Final = 2  # one being worked on and one waiting: a worker never waits for the parent
_STOP_TIMEOUT_S: Final = 5.0


class SharedMemory:
    """Places for frames, shared with child processes that are given this object when they are started.

    ``ConfigError``: the system has no anonymous files in memory; ``RoundAborted``: there is not enough
    memory.
    """

    def __init__(self, places: int) -> None:
        if not hasattr(os, "memfd_create"):
            raise ConfigError(
                "worker processes need files in memory (memfd_create)",
                remedy="run it on Linux, or set protection.processes = 0",
            )
        try:
            self._descriptor = os.memfd_create("secfed")
            # Reserved at once: memory that runs out later would be a signal, not an error.
            os.posix_fallocate(self._descriptor, 0, places * _PLACE_BYTES)
            self._map()
        except OSError:
            raise RoundAborted(
                f"no memory for {places} frames shared with encryption workers",
                remedy="check the memory limit of the site's service, or use fewer protection.processes",
            ) from None

    def __getstate__(self) -> Any:
        assert_spawning(self)
        return DupFd(self._descriptor)

    def __setstate__(self, shared: Any) -> None:
        self._descriptor = shared.detach()
        self._map()

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def _map(self) -> None:
        self._view = memoryview(mmap(self._descriptor, os.fstat(self._descriptor).st_size))

    def put(self, place: int, data: Buffer) -> int:
        """Copy bytes to a place; gives their number. More than a frame can have are refused."""
        view = memoryview(data).cast("B")
        if len(view) > _PLACE_BYTES:
            raise MalformedMessage(f"a ciphertext frame of {len(view)} bytes is larger than any frame")
        start = place * _PLACE_BYTES
        self._view[start : start + len(view)] = view
        return len(view)

    def look(self, place: int, size: int) -> memoryview:
        """The first ``size`` bytes of a place, read-only, without a copy."""
        start = place * _PLACE_BYTES
        return self._view[start : start + size].toreadonly()


class _Worker:
    def __init__(self, keys: KeyPair, memory: SharedMemory) -> None:
        context = get_context("spawn")
        self.pipe, far = context.Pipe()
        # A daemon: an interpreter that ends without close() stops it instead of waiting for it.
        self.process = context.Process(target=_serve, args=(far, memory, keys), daemon=True)
        try:
            self.process.start()
        except OSError:
            raise RoundAborted(
                "an encryption worker process could not be started",
                remedy="check the process limit of the site's service, or set protection.processes = 0",
            ) from None
        finally:
            far.close()  # the child has its own; the pipe ends when the child does
        self.tasks = 0


class WorkerPool:
    """Processes that encrypt and decrypt frames. They start at the first use and serve until :meth:`close`.

    Not for use by several threads at once.
    """

    def __init__(self, keys: KeyPair, processes: int) -> None:
        self._keys = keys
        self._processes = processes
        self._workers: list[_Worker] = []
        self._memory: SharedMemory | None = None
        self._free: list[int] = []
        self._answers: dict[int, int | SecfedError] = {}
        self._turn = 0

    def map(self, work: Work, job: Job, inputs: Iterable[Buffer]) -> Iterator[memoryview]:
        """Results of ``work`` on every input, in order; each is valid until the next one is asked for.

        Inputs are taken a few ahead. Starting another map ends this one (``WrongState``). Raises what a
        worker refused, and ``RoundAborted`` where one died; the next call starts new ones.
        """
        memory, turn = self._start()
        waiting: deque[int] = deque()  # places, in the order of the inputs
        for index, data in enumerate(inputs):
            self._check(turn)
            if not self._free:
                yield from self._first(waiting, memory, turn)
            place = self._free.pop()
            self._submit((work, job, index, place, memory.put(place, data)))
            waiting.append(place)
        while waiting:
            yield from self._first(waiting, memory, turn)

    def close(self) -> None:
        """Stop the workers."""
        workers, self._workers, self._memory = self._workers, [], None
        self._turn += 1
        for worker in workers:
            with suppress(OSError):
                worker.pipe.send(None)  # not only the end of the pipe: a fork of this process may hold it too
            worker.pipe.close()
        for worker in workers:
            worker.process.join(_STOP_TIMEOUT_S)
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()

    def _start(self) -> tuple[SharedMemory, int]:
        """The shared memory, with every worker running and every place free, and whose turn it is."""
        if self._memory is None:
            memory = SharedMemory(_PLACES_PER_WORKER * self._processes)
            self._workers = [_Worker(self._keys, memory) for _ in range(self._processes)]
            self._memory = memory
        while any(worker.tasks for worker in self._workers):
            self._collect(None)  # results that nobody wants any more
        self._answers.clear()
        self._free = list(range(_PLACES_PER_WORKER * self._processes))
        self._turn += 1
        return self._memory, self._turn

    def _check(self, turn: int) -> None:
        if turn != self._turn:
            raise WrongState(
                "encryption workers were given other work before this was done",
                remedy="take all frames of one vector before the next one is begun",
            )

    def _first(self, waiting: deque[int], memory: SharedMemory, turn: int) -> Iterator[memoryview]:
        """Give the oldest result, and free its place once the caller is done with it."""
        place = waiting.popleft()
        while place not in self._answers:
            self._collect(None)
        answer = self._answers.pop(place)
        if isinstance(answer, SecfedError):
            raise answer
        yield memory.look(place, answer)
        self._check(turn)
        self._free.append(place)

    def _submit(self, task: tuple[Work, Job, int, int, int]) -> None:
        self._collect(0)
        worker = min(self._workers, key=lambda worker: worker.tasks)
        try:
            worker.pipe.send(task)
        except OSError:
            raise self._died(worker) from None
        worker.tasks += 1

    def _collect(self, timeout_s: float | None) -> None:
        """Take the answers that have arrived; without a timeout, wait for one."""
        ready = wait([worker.pipe for worker in self._workers], timeout_s)
        for worker in self._workers:
            if worker.pipe in ready:
                try:
                    place, answer = worker.pipe.recv()
                except (EOFError, OSError):
                    raise self._died(worker) from None
                worker.tasks -= 1
                self._answers[place] = answer

    def _died(self, worker: _Worker) -> RoundAborted:
        """The error of a worker that is gone; the others are stopped, and the next use starts anew."""
        worker.process.join(_STOP_TIMEOUT_S)
        code = worker.process.exitcode
        self.close()
        if code is not None and code < 0:
            return RoundAborted(
                f"an encryption worker process died ({signal.strsignal(-code)})",
                remedy="check the memory limit of the site's service, or use fewer protection.processes",
            )
        return RoundAborted(
            "an encryption worker process died",
            remedy="see the error it printed, or set protection.processes = 0",
        )


def _serve(pipe: Connection, memory: SharedMemory, keys: KeyPair) -> None:
    """A worker's life: tasks until the pipe ends. An error that is not ours ends it, with its traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    cipher = FrameCipher(keys)
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        if task is None:
            return
        work, job, index, place, size = task
        answer: int | SecfedError
        try:
            answer = memory.put(place, cipher.work(work, job, index, memory.look(place, size)))
        except SecfedError as error:
            answer = error
        try:
            pipe.send((place, answer))
        except OSError:
            return
