"""Worker processes change the speed and nothing else; if one dies, the round ends with an error."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path

import numpy as np
import pytest

from secfed.crypto.encrypted import workers as encrypted_workers
from secfed.crypto.encrypted.client import SiteCipher
from secfed.crypto.encrypted.server import RunningSum
from secfed.crypto.encrypted.study_keys import KeyPair
from secfed.crypto.encrypted.workers import SharedMemory, WorkerPool
from secfed.crypto.lanes import Run
from secfed.errors import MalformedMessage, RangeError, RoundAborted, WrongState
from tests.crypto.encrypted_case import Lanes, keys_of, ring_sums, small, study_ring, summed, upload
from tests.kill import failing

RUNS = (Run(19, 400_000), Run(64, 2))


@pytest.fixture(scope="module")
def pool():
    """Two workers of the symmetric study."""
    with SiteCipher(keys_of(study_ring(19, 8, "symmetric")), processes=2) as cipher:
        yield cipher


@contextlib.contextmanager
def one_worker(mode="symmetric"):
    """A cipher with one worker that has worked, and that worker."""
    parameters, _ = small((Run(19, 10),), 8, mode)
    before = set(multiprocessing.active_children())
    with SiteCipher(keys_of(parameters.ring), processes=1) as cipher:
        upload(cipher, parameters, [[1] * 10])
        (child,) = set(multiprocessing.active_children()) - before
        yield parameters, cipher, child


# The same uploads and sums


@pytest.mark.parametrize("mode", ["public", "symmetric"])
def test_uploads_and_sums_of_workers_mix_with_those_of_this_process(mode):
    parameters, here = small(RUNS, 8, mode)
    rng = np.random.default_rng(11)
    vectors = [[rng.integers(-99, 99, run.count).tolist() for run in RUNS] for _ in range(2)]
    assert parameters.frames > 3
    expected = ring_sums(RUNS, vectors)
    with SiteCipher(keys_of(parameters.ring), processes=2) as workers:
        total = RunningSum(parameters)
        total.add("a", upload(workers, parameters, vectors[0]))
        total.add("b", upload(here, parameters, vectors[1]))
        for cipher in (workers, here):
            assert [run.tolist() for run in cipher.decrypt(parameters, total.frames())] == expected


def test_workers_carry_real_numbers_too():
    runs = (Run(32, 5000),)
    parameters, _ = small(runs, 8, "public", "ckks")
    with SiteCipher(keys_of(parameters.ring), processes=1) as cipher:
        (sums,) = summed(cipher, parameters, [[[1 << 20] * 5000]] * 2)
    assert max(abs(value - (1 << 21)) for value in sums) < 1 << 8


def test_a_vector_is_read_only_a_few_frames_ahead(pool):
    runs = (Run(19, 2_000_000),)
    parameters, _ = small(runs, 8, "symmetric")
    source = Lanes(runs, [[0] * runs[0].count])
    frames = pool.encrypt(parameters, source)
    next(frames)
    frame_lanes = runs[0].count / parameters.frames
    assert source.read < 7 * frame_lanes
    frames.close()


# What is left half done


def test_an_error_of_the_vector_reaches_the_caller_and_the_workers_go_on(pool):
    class Broken:
        def fill(self, run, out):
            raise RangeError("a value is NaN")

    parameters, _ = small((Run(19, 10),), 8, "symmetric")
    with pytest.raises(RangeError, match="NaN"):
        list(pool.encrypt(parameters, Broken()))
    assert summed(pool, parameters, [[[1] * 10]]) == [[1] * 10]


def test_an_upload_given_up_half_way_leaves_nothing_in_the_next_one(pool):
    parameters, _ = small(RUNS, 8, "symmetric")
    frames = pool.encrypt(parameters, Lanes(RUNS, [[5] * RUNS[0].count, [5] * 2]))
    next(frames)
    frames.close()
    vector = [[-3] * RUNS[0].count, [9] * 2]
    assert summed(pool, parameters, [vector]) == ring_sums(RUNS, [vector])


def test_a_vector_begun_before_another_one_was_done_is_over(pool):
    parameters, _ = small(RUNS, 8, "symmetric")
    first = pool.encrypt(parameters, Lanes(RUNS, [[5] * RUNS[0].count, [5] * 2]))
    next(first)
    vector = [[-3] * RUNS[0].count, [9] * 2]
    assert summed(pool, parameters, [vector]) == ring_sums(RUNS, [vector])
    with pytest.raises(WrongState, match="other work"):
        list(first)


# What workers refuse


def test_what_a_worker_refuses_is_refused_in_the_same_words(pool):
    parameters, here = small(RUNS, 8, "symmetric")
    total = RunningSum(parameters)
    total.add("a", upload(here, parameters, [[1] * RUNS[0].count, [1] * 2]))
    frames = list(total.frames())
    flipped = bytes([frames[1][0] ^ 1]) + frames[1][1:]
    noise = frames[1][:-4000] + os.urandom(4000)
    for bad in (flipped, frames[1][:-1], noise):
        said = []
        for cipher in (pool, here):
            with pytest.raises((MalformedMessage, RangeError)) as caught:
                cipher.decrypt(parameters, [frames[0], bad, *frames[2:]])
            said.append((type(caught.value), str(caught.value)))
        assert said[0] == said[1]
    assert pool.decrypt(parameters, frames)[0].tolist() == [1] * RUNS[0].count


def test_a_frame_larger_than_any_is_refused_before_it_reaches_a_worker(pool):
    parameters, _ = small(RUNS, 8, "symmetric")
    with pytest.raises(MalformedMessage, match="larger than any frame"):
        pool.decrypt(parameters, [bytes(2_000_000)] * parameters.frames)


def test_keys_of_another_ring_are_refused_by_workers_too(pool):
    parameters, _ = small((Run(32, 10),), 3, "symmetric")
    assert parameters.ring != study_ring(19, 8, "symmetric")
    with pytest.raises(MalformedMessage, match="secret key of the study's encryption ring"):
        upload(pool, parameters, [[1] * 10])


# Workers that die


def test_the_death_of_an_idle_worker_aborts_the_round_and_the_next_round_has_new_ones():
    with one_worker() as (parameters, cipher, child):
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        with pytest.raises(RoundAborted, match=r"worker process died \(Killed\)"):
            upload(cipher, parameters, [[1] * 10])
        assert summed(cipher, parameters, [[[1] * 10]]) == [[1] * 10]


@pytest.mark.parametrize("work", ["encrypt", "decrypt"])
def test_the_death_of_a_worker_at_work_aborts_the_round(work):
    parameters, here = small(RUNS, 8, "symmetric")
    vector = [[1] * RUNS[0].count, [1] * 2]
    total = RunningSum(parameters)
    total.add("a", upload(here, parameters, vector))
    with one_worker() as (_, cipher, child):

        def kill():
            os.kill(child.pid, signal.SIGSTOP)  # so that tasks given to it meanwhile are surely not done
            os.kill(child.pid, signal.SIGKILL)

        class Source(Lanes):
            def fill(self, run, out):
                super().fill(run, out)
                if self.read > 250_000:
                    kill()

        def frames():
            for index, frame in enumerate(total.frames()):
                if index == 2:
                    kill()
                yield frame

        works = {
            "encrypt": lambda: list(cipher.encrypt(parameters, Source(RUNS, vector))),
            "decrypt": lambda: cipher.decrypt(parameters, frames()),
        }
        with pytest.raises(RoundAborted, match="worker process died"):
            works[work]()


def test_a_failure_that_is_no_refusal_is_printed_by_the_worker_and_aborts_the_round(capfd):
    parameters, _ = small((Run(19, 10),), 8, "symmetric")
    broken = KeyPair(secret_key=None, public_key=b"")  # type: ignore[arg-type]
    with SiteCipher(broken, processes=1) as cipher, pytest.raises(RoundAborted, match="see the error"):
        upload(cipher, parameters, [[1] * 10])
    assert "AttributeError" in capfd.readouterr().err


def test_workers_stop_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import multiprocessing, os, signal\n"
        "from secfed.crypto.encrypted.client import SiteCipher\n"
        "from secfed.crypto.lanes import Run\n"
        "from tests.crypto.encrypted_case import keys_of, small, upload\n"
        "if __name__ == '__main__':\n"
        "    parameters, _ = small((Run(19, 10),), 8, 'symmetric')\n"
        "    cipher = SiteCipher(keys_of(parameters.ring), processes=2)\n"
        "    upload(cipher, parameters, [[1] * 10])\n"
        "    print(*(child.pid for child in multiprocessing.active_children()), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == -signal.SIGKILL
    pids = done.stdout.split()
    assert len(pids) == 2
    for pid in pids:
        _wait_until(lambda pid=pid: not _alive(pid))


def _alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # dead, and not yet reaped by whoever adopted it


def _wait_until(holds):
    for _ in range(2400):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("it does not come true")


def _descriptors():
    """Every open descriptor and what it is; those of earlier tests may go at any moment, to the collector."""
    resource_tracker.ensure_running()  # its pipe belongs to the process and stays
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.add((entry.name, os.readlink(entry)))
    return found


def test_closing_leaves_no_process_and_no_descriptor():
    before = set(multiprocessing.active_children())
    with one_worker():
        pass  # imports, and the tracker that every start with spawn needs
    held = _descriptors()
    with one_worker() as (_, _, child):
        pass
    assert child.exitcode == 0
    assert set(multiprocessing.active_children()) == before
    del child
    assert _descriptors() <= held


# What workers hold, and who can see it


def test_the_shared_memory_has_no_name_that_another_process_could_open():
    with one_worker() as (_, _, child):
        for pid in ("self", child.pid):
            shared = [link for link in _open_files(pid) if "secfed" in link]
            assert shared
            assert set(shared) == {"/memfd:secfed (deleted)"}


def test_a_worker_inherits_no_open_file_of_its_parent():
    with tempfile.NamedTemporaryFile(prefix="hospital-data-") as data:
        os.set_inheritable(data.fileno(), True)
        with one_worker() as (_, _, child):
            assert any("hospital-data-" in link for link in _open_files("self"))
            assert not any("hospital-data-" in link for link in _open_files(child.pid))


def test_no_key_is_in_a_workers_arguments_or_environment():
    with one_worker() as (parameters, _, child):
        secret = keys_of(parameters.ring).secret_key
        seen = b"".join(Path(f"/proc/{child.pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
    for form in (secret, secret.hex().encode(), repr(secret)[2:-1].encode()):
        assert all(form[at : at + 24] not in seen for at in range(len(form) // 2, len(form) - 24, 24))


def _open_files(pid):
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(entry))
    return links


def test_shared_memory_goes_to_processes_being_started_only():
    with pytest.raises(RuntimeError, match="shared between processes"):
        pickle.dumps(SharedMemory(1))


@pytest.mark.parametrize(
    ("call", "number", "said"),
    [
        ("posix_fallocate", errno.ENOSPC, "no memory for 4 frames"),
        ("memfd_create", errno.ENOMEM, "no memory"),
        ("mmap", errno.ENOMEM, "no memory for 4 frames"),  # a limit on addresses (LimitAS) shows here first
    ],
)
def test_memory_that_cannot_be_had_is_an_error_and_not_a_signal(monkeypatch, call, number, said):
    parameters, _ = small(RUNS, 8)  # before: making keys needs memory too
    monkeypatch.setattr(encrypted_workers if call == "mmap" else encrypted_workers.os, call, failing(number))
    with pytest.raises(RoundAborted, match=said):
        next(WorkerPool(KeyPair(b"", b""), 2).map("encrypt", parameters, [b""]))


def test_workers_that_cannot_be_started_are_an_error_and_leave_nothing_behind(monkeypatch):
    parameters, _ = small((Run(19, 10),), 8, "symmetric")
    before = set(multiprocessing.active_children())
    held = _descriptors()
    start = SpawnProcess.start

    def refused(process):
        if multiprocessing.active_children():
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        start(process)

    with SiteCipher(keys_of(parameters.ring), processes=2) as cipher:
        with monkeypatch.context() as patch:
            patch.setattr(SpawnProcess, "start", refused)
            with pytest.raises(RoundAborted, match="could not be started"):
                upload(cipher, parameters, [[1] * 10])
        _wait_until(lambda: set(multiprocessing.active_children()) == before)
        assert _descriptors() <= held
        assert summed(cipher, parameters, [[[1] * 10]]) == [[1] * 10]


def test_memory_does_not_grow_with_the_vector():
    parameters, _ = small((Run(19, 1_500_000),), 8, "symmetric")
    with one_worker() as (_, cipher, child):
        peaks_kib = [
            int(
                Path(f"/proc/{child.pid}/status")
                .read_text(encoding="ascii")
                .partition("VmHWM:")[2]
                .split()[0]
            )
            for _ in cipher.encrypt(parameters, Lanes((Run(19, 1_500_000),), [[1] * 1_500_000]))
        ]
    assert len(peaks_kib) > 10
    assert peaks_kib[-1] - peaks_kib[3] < 2048
