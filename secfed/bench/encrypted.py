"""Encrypted protection beside the CKKS context that everyone uses, measured in one run.

Protecting starts at float32 values and ends at bytes ready to send. ``tag_to_encryption`` is the processor
time of the tags beside all the rest. Variants take turns and the best of several repeats counts; everything
but ``parallel`` runs in one process and thread. Rates and speed-ups are per second of processor time,
``seconds`` of the clock. The usual CKKS context is so slow that it runs on fewer values (``ckks_params``).
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from secfed.bench.processes import other_process, resident_bytes

if TYPE_CHECKING:  # imported late: a worker that measures memory must not carry what its role does not need
    import numpy as np
    from numpy.typing import NDArray

    from secfed.crypto.encrypted.bfv import Parameters
    from secfed.crypto.encrypted.client import SiteCipher
    from secfed.crypto.encrypted.study_keys import KeyPair
    from secfed.wire.layout import Encoder, Layout

USUAL_CKKS = (8192, (60, 40, 40, 60), 2.0**40)
MAX_CKKS_PARAMS = 200_000
VARIANTS = {
    "public": ("public", "bfv"),
    "symmetric": ("symmetric", "bfv"),
    "ckks_additions": ("public", "ckks"),
}


def measure(
    *,
    parameters: int = 1_000_000,
    sites: int = 8,
    value_bits: int = 16,
    repeats: int = 3,
    processes: int = 2,
    memory: bool = False,
    progress: Callable[[str], None] = lambda _text: None,
) -> dict[str, Any]:
    """All numbers of one run; see the module's text for what is timed.

    ``processes`` workers do the parallel measurement, 0 leaves it out; ``memory`` also measures peak memory
    of a site and of the aggregator, in processes of their own.
    """
    progress("measuring")
    bits = value_bits + max(1, (sites - 1).bit_length())
    studies = {name: _Study(parameters, sites, bits, *variant) for name, variant in VARIANTS.items()}
    usual = _UsualCkks(min(parameters, MAX_CKKS_PARAMS))
    protect: dict[str, _Best] = {}
    tag: dict[str, _Best] = {}
    encrypt: dict[str, _Best] = {}
    for _ in range(repeats):
        for name, study in studies.items():
            _time(encrypt, name, study.encrypt)
            _time(tag, name, study.tag)
        _time(protect, "ckks", usual.protect)
    for name in studies:
        both = encrypt[name], tag[name]
        protect[name] = _Best(sum(one.clock_s for one in both), sum(one.cpu_s for one in both))
    counts = dict.fromkeys(studies, parameters) | {"ckks": usual.params}
    rates = {name: counts[name] / best.cpu_s / 1e6 for name, best in protect.items()}
    sizes = {name: study.upload_bytes / parameters for name, study in studies.items()}
    sizes["ckks"] = usual.upload_bytes / usual.params
    seconds = {
        name: {"protect": protect[name].clock_s, "tag": tag[name].clock_s, **study.rest()}
        for name, study in studies.items()
    }
    result = {
        "params": parameters,
        "sites": sites,
        "value_bits": value_bits,
        "lane_bits": bits,
        "ckks_params": usual.params,
        "bytes_per_param": sizes,
        "mparams_per_s_core": rates,
        "tag_to_encryption": {name: tag[name].cpu_s / encrypt[name].cpu_s for name in studies},
        "speedup_vs_ckks": {name: rates[name] / rates["ckks"] for name in studies},
        "smaller_than_ckks": {name: sizes["ckks"] / sizes[name] for name in studies},
        "seconds": seconds | {"ckks": {"protect": protect["ckks"].clock_s}},
        "rings": {name: study.describe() for name, study in studies.items()},
    }
    _add_masked(result, repeats)
    exact = {name: studies[name] for name in ("public", "symmetric")}
    if processes:
        result["parallel"] = {name: _parallel(study, processes, repeats) for name, study in exact.items()}
    if memory:
        result["peak_mib"] = {name: _peaks(study, processes) for name, study in exact.items()}
    return result


def _add_masked(result: dict[str, Any], repeats: int) -> None:
    """Masked and plain protection of the same vector at the same lane width, in the same run."""
    from secfed.bench import masked

    params, sites = result["params"], max(3, result["sites"])
    beside = masked.measure(
        parameters=params, sites=sites, bits=result["lane_bits"], repeats=repeats, with_flower=False
    )
    for name, key in (("masked", "client_protect"), ("plain", "plain_protect")):
        seconds = beside["seconds"][key]
        result["bytes_per_param"][name] = beside["bytes_per_param"]
        result["mparams_per_s_core"][name] = params / seconds / 1e6
        result["seconds"][name] = {"protect": seconds}


class _Study:
    """One variant: a layout, keys, and what one site does with them."""

    def __init__(self, params: int, sites: int, bits: int, key_mode: Any, scheme: Any) -> None:
        from secfed.crypto.encrypted.bfv import choose
        from secfed.crypto.encrypted.bfv_tenseal import generate_keys
        from secfed.crypto.encrypted.client import SiteCipher
        from secfed.crypto.encrypted.server import UPLOAD, FrameFormat
        from secfed.crypto.encrypted.tags import UPLOAD_TAG_BYTES
        from secfed.wire.layout import Field, Layout

        self.layout = Layout((Field("update", (params,), 1.0, bits),), sites)
        self.parameters = choose(self.layout.shape.runs, sites, key_mode=key_mode, scheme=scheme)
        self.keys = generate_keys(self.parameters.ring)
        self.cipher = SiteCipher(self.keys)
        self.upload_bytes = FrameFormat(self.parameters, UPLOAD).total_bytes + UPLOAD_TAG_BYTES
        self._frames: list[bytes] = []

    def encrypt(self, cipher: SiteCipher | None = None) -> None:
        """With the workers of ``cipher`` if it is given."""
        self._frames = list((cipher or self.cipher).encrypt(self.parameters, _encoder(self.layout)))

    def tag(self, cipher: SiteCipher | None = None) -> None:
        (cipher or self.cipher).tag(self.parameters, bytes(32), "site", self._frames)

    def protect(self, cipher: SiteCipher | None = None) -> None:
        self.encrypt(cipher)
        self.tag(cipher)

    def rest(self) -> dict[str, float]:
        """Seconds to add one upload and to decrypt the sum; the sum is checked."""
        from secfed.crypto.encrypted.server import RunningSum

        total = RunningSum(self.parameters)
        times: dict[str, _Best] = {}
        for index in range(min(self.parameters.sites, 4)):
            upload = b"".join(self.cipher.encrypt(self.parameters, _encoder(self.layout)))
            _time(times, "add", partial(total.add, str(index), upload))
        frames = list(total.frames())
        sums: list[tuple[NDArray[Any], ...]] = []
        _time(times, "decrypt", lambda: sums.append(self.cipher.decrypt(self.parameters, frames)))
        self._check(sums[0], len(total.sites))
        return {name: best.clock_s for name, best in times.items()}

    def _check(self, sums: tuple[NDArray[Any], ...], added: int) -> None:
        values = self.layout.decode(sums, ("",) * added)["update"]
        expected = _values(self.layout.elements).double().clamp(-1, 1) * added
        step = 2.0 ** -(self.layout.fields[0].bits - 2) * self.parameters.sites * added
        if float((values - expected).abs().max()) > step:
            raise SystemExit("the decrypted sum is wrong")

    def describe(self) -> dict[str, Any]:
        ring = self.parameters.ring
        return {
            "n": ring.size,
            "modulus_bits": ring.modulus_bits,
            "special_bits": ring.special_bits,
            "slot_bits": self.parameters.slot_bits,
            "lanes_per_slot": self.parameters.lanes_per_slot(self.parameters.runs[0]),
            "security_bits": ring.security_bits,
        }


class _UsualCkks:
    """The context of the tutorials: one vector per 4096 values, encrypted and serialised."""

    def __init__(self, params: int) -> None:
        import tenseal

        size, moduli, scale = USUAL_CKKS
        self.params = params
        self.upload_bytes = 0
        self._slots = size // 2
        self._make = tenseal.ckks_vector
        scheme = tenseal.SCHEME_TYPE.CKKS
        self._context = tenseal.context(scheme, size, coeff_mod_bit_sizes=list(moduli), n_threads=1)
        self._context.global_scale = scale
        self._values: NDArray[np.float32] = _values(params).numpy()

    def protect(self) -> None:
        chunks = (self._values[at : at + self._slots] for at in range(0, self.params, self._slots))
        encrypted = (self._make(self._context, chunk.tolist()) for chunk in chunks)
        self.upload_bytes = sum(len(vector.serialize()) for vector in encrypted)


def _parallel(study: _Study, processes: int, repeats: int) -> dict[str, float]:
    """Speed-up of workers over this process, by the clock and by the processor time they take in all.

    The clock needs as many idle cores as there are processes; ``speedup_by_cpu_time`` does not depend on
    other work. ``first_upload_s`` is an upload that waits for the workers' start.
    """
    from secfed.crypto.encrypted.client import SiteCipher

    times: dict[str, _Best] = {}
    workers_cpu_s = float("inf")
    with SiteCipher(study.keys, processes=processes) as workers:
        together = partial(study.protect, workers)
        _time(times, "first", together)
        for _ in range(repeats):
            _time(times, "one", study.protect)
            started = _children_cpu_s()
            _time(times, "together", together)
            workers_cpu_s = min(workers_cpu_s, _children_cpu_s() - started)
    one, both = times["one"], times["together"]
    return {
        "processes": processes,
        "speedup": one.clock_s / both.clock_s,
        "speedup_by_cpu_time": processes * one.cpu_s / (both.cpu_s + workers_cpu_s),
        "alone_s": one.clock_s,
        "together_s": both.clock_s,
        "first_upload_s": times["first"].clock_s,
        "alone_cpu_s": one.cpu_s,
        "parent_cpu_s": both.cpu_s,
        "workers_cpu_s": workers_cpu_s,
    }


def _children_cpu_s() -> float:
    total_ns = 0
    for child in multiprocessing.active_children():
        with open(f"/proc/{child.pid}/schedstat", encoding="ascii") as schedstat:
            total_ns += int(schedstat.read().split()[0])
    return total_ns / 1e9


def _peaks(study: _Study, processes: int) -> dict[str, float]:
    """Largest resident set of a site (its workers included) and of the aggregator over all sites."""
    role = study.keys, study.parameters, study.layout, processes
    with other_process(_site_role, *role, daemon=False) as pipe:
        upload = b"".join(iter(pipe.recv_bytes, b""))
        site_peak = pipe.recv()
    with other_process(_aggregator_role, study.parameters) as pipe:
        for _ in range(study.parameters.sites):
            pipe.send_bytes(upload)
        aggregator_peak = pipe.recv()
    return {"site": site_peak, "aggregator": aggregator_peak}


def _site_role(
    pipe: Connection, keys: KeyPair, parameters: Parameters, layout: Layout, processes: int
) -> None:
    from secfed.crypto.encrypted.client import SiteCipher

    with SiteCipher(keys, processes=processes) as cipher:
        for frame in cipher.encrypt(parameters, _encoder(layout)):
            pipe.send_bytes(frame)
        pipe.send_bytes(b"")
        processes_here = ["self", *(str(child.pid) for child in multiprocessing.active_children())]
        pipe.send(sum(resident_bytes("VmHWM", one) for one in processes_here) / 2**20)


def _aggregator_role(pipe: Connection, parameters: Parameters) -> None:
    from secfed.crypto.encrypted.server import RunningSum

    total = RunningSum(parameters)
    for index in range(parameters.sites):
        total.add(str(index), pipe.recv_bytes())
    for _ in total.frames():
        pass
    pipe.send(resident_bytes("VmHWM") / 2**20)


@lru_cache
def _values(params: int) -> Any:
    import torch

    return torch.empty(params).normal_(0.0, 0.05, generator=torch.Generator().manual_seed(0))


def _encoder(layout: Layout) -> Encoder:
    from secfed.crypto.keystream import RoundingStream

    return layout.encoder({"update": _values(layout.elements)}, RoundingStream())


@dataclass
class _Best:
    """The shortest of several runs, by the clock and by the processor."""

    clock_s: float = float("inf")
    cpu_s: float = float("inf")


def _time(times: dict[str, _Best], name: str, action: Callable[[], object]) -> None:
    best = times.setdefault(name, _Best())
    clock, cpu = time.perf_counter(), time.process_time()
    action()
    best.clock_s = min(best.clock_s, time.perf_counter() - clock)
    best.cpu_s = min(best.cpu_s, time.process_time() - cpu)
