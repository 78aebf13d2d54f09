"""A site's half of encrypted sums: encrypt a vector as it is read, decrypt the sum of many.

The library holds Python's interpreter lock, so more than one core needs more than one process. Workers are
started with ``spawn``: they inherit no memory, descriptors or locks, and receive their keys through the
start-up pipe. Frames are independent of each other; at most two per worker are on their way, which bounds
the memory however long the vector is, and results keep their order.

As with every use of ``spawn``, a script that asks for workers keeps its own start behind
``if __name__ == "__main__":``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from types import TracebackType
from typing import Any, TypeVar

from numpy.typing import NDArray

from secfed.crypto.bfv import Parameters
from secfed.crypto.bfv_packing import Slots, VectorSource, lanes_from, slot_frames
from secfed.crypto.bfv_tenseal import Decryptor, Encryptor, KeyPair
from secfed.crypto.codec import Buffer
from secfed.crypto.encrypted import SUM, UPLOAD, FrameFormat
from secfed.errors import MalformedMessage, RoundAborted

Item = TypeVar("Item")
Result = TypeVar("Result")

_FRAMES_PER_WORKER = 2


class SiteCipher:
    """Encrypts this site's vectors and decrypts sums, in this process or in worker processes.

    One object serves a whole study: any number of exchanges under the ring of its keys. Use it as a context
    manager, or call :meth:`close`.

    Args:
        keys: the study's keys.
        processes: worker processes; 0 works in this process.

    Security: workers hold the secret key. It reaches them through a pipe, never through arguments, the
    environment or a file.
    """

    def __init__(self, keys: KeyPair, *, processes: int = 0) -> None:
        self._cipher = _FrameCipher(keys)
        self._processes = processes
        self._pool: ProcessPoolExecutor | None = None
        if processes:
            self._pool = ProcessPoolExecutor(
                processes, get_context("spawn"), initializer=_start_worker, initargs=(keys,)
            )

    def encrypt(self, parameters: Parameters, source: VectorSource) -> Iterator[bytes]:
        """Read a vector once and yield its upload, frame by frame.

        Raises:
            MalformedMessage: the keys are for another ring.
            RoundAborted: a worker process died.
        """
        form = FrameFormat(parameters, UPLOAD)
        tasks = ((parameters, slots) for slots in slot_frames(source, parameters))
        for index, body in enumerate(self._map(self._cipher.encrypt, _encrypt, tasks)):
            yield form.header(index) + body

    def decrypt(self, parameters: Parameters, frames: Iterable[Buffer]) -> tuple[NDArray[Any], ...]:
        """Decrypt a sum: one array of ring integers per run, [count] uint32 or uint64.

        Args:
            parameters: of the exchange.
            frames: all frames of the sum, in order.

        Raises:
            MalformedMessage: a frame is refused, missing or left over.
            RangeError: the noise leaves no margin; the sum is not one of honest uploads.
            RoundAborted: a worker process died.
        """

        def numbered() -> Iterator[tuple[Parameters, int, bytes]]:
            count = 0
            for frame in frames:
                if count == parameters.frames:
                    raise MalformedMessage("an encrypted sum has more frames than its parameters")
                yield parameters, count, bytes(frame)
                count += 1
            if count < parameters.frames:
                raise MalformedMessage(f"an encrypted sum ends after {count} of {parameters.frames} frames")

        return lanes_from(self._map(self._cipher.decrypt, _decrypt, numbered()), parameters)

    def close(self) -> None:
        """Stop the workers."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> SiteCipher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _map(
        self, here: Callable[..., Result], there: Callable[..., Result], tasks: Iterable[tuple[Any, ...]]
    ) -> Iterator[Result]:
        """Results in order, computed here or by workers; few tasks are taken ahead of the result needed."""
        if self._pool is None:
            for task in tasks:
                yield here(*task)
            return
        waiting: deque[Future[Result]] = deque()
        try:
            for task in tasks:
                waiting.append(self._pool.submit(there, *task))
                if len(waiting) >= _FRAMES_PER_WORKER * self._processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise RoundAborted(
                "an encryption worker process died",
                remedy="check the memory limit of the site's service, or use fewer protection.processes",
            ) from None
        finally:
            for future in waiting:
                future.cancel()


class _FrameCipher:
    """The work on one frame. Contexts are kept, because building one takes longer than using it."""

    def __init__(self, keys: KeyPair) -> None:
        self._keys = keys
        self._encryptors: dict[Parameters, Encryptor] = {}
        self._decryptors: dict[Parameters, Decryptor] = {}

    def encrypt(self, parameters: Parameters, slots: Slots) -> bytes:
        if parameters not in self._encryptors:
            symmetric = parameters.ring.key_mode == "symmetric"
            key = self._keys.secret_key if symmetric else self._keys.public_key
            self._encryptors[parameters] = Encryptor(parameters, key)
        return self._encryptors[parameters].frame(slots)

    def decrypt(self, parameters: Parameters, index: int, frame: Buffer) -> Slots:
        words, _ = FrameFormat(parameters, SUM).words(frame, index)
        if parameters not in self._decryptors:
            self._decryptors[parameters] = Decryptor(parameters, self._keys.secret_key)
        return self._decryptors[parameters].frame(words)


_worker: _FrameCipher


def _start_worker(keys: KeyPair) -> None:
    global _worker
    _worker = _FrameCipher(keys)


def _encrypt(parameters: Parameters, slots: Slots) -> bytes:
    return _worker.encrypt(parameters, slots)


def _decrypt(parameters: Parameters, index: int, frame: Buffer) -> Slots:
    return _worker.decrypt(parameters, index, frame)
