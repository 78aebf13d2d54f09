"""What a killed aggregator leaves on its disk holds no hospital's values: files, transcript, log."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from secfed.cli.aggregate_log import EventLog
from secfed.deploy.transport.json_log import JsonFormatter
from tests.deploy.central_case import Crash, Hospitals, crash_at, rounding

_WINDOW = 6  # consecutive elements that no coincidence repeats


class Sentinels:
    """Everything that the sites contributed, in each spelling that could be found on a disk."""

    def __init__(self, h: Hospitals) -> None:
        self.spellings: list[bytes] = []
        for name, site in h.sites.items():
            self._watch(h, name, site._local._program)

    def _watch(self, h: Hospitals, name: str, program: Any) -> None:
        original = program.contribute

        def contribute(round_number: int, exchange: Any, broadcast: Any) -> Any:
            summands = original(round_number, exchange, broadcast)
            for value in summands.values():
                tensor = torch.as_tensor(value, dtype=torch.float64).reshape(-1)
                spread = len(set(tensor.tolist()))
                # A short number such as 36.0 occurs by chance in a megabyte of ciphertext; a loss does not.
                if tensor.numel() == 1 and len(repr(float(tensor))) >= 10:
                    self.spellings.append(repr(float(tensor)).encode())
                elif spread > _WINDOW and not bool((tensor[:_WINDOW] == 0).all()):
                    head = tensor[:_WINDOW]
                    self.spellings.append(head.numpy().tobytes())
                    self.spellings.append(head.to(torch.float32).numpy().tobytes())
            encoder = exchange.layout.encoder(summands, rounding(h.study.seed, name, round_number, 0))
            run = exchange.layout.shape.runs[0]
            lanes = np.empty(run.count, run.dtype)
            encoder.fill(run, lanes)
            assert len(set(lanes[:_WINDOW].tolist())) > 2
            self.spellings.append(lanes[:_WINDOW].tobytes())
            return summands

        program.contribute = contribute

    def found_in(self, data: bytes) -> list[bytes]:
        return [spelling for spelling in self.spellings if spelling in data]


def everything(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.parametrize("protection", ["plain", "masked", "closed", "encrypted"])
def test_no_value_of_a_hospital_is_on_the_disk_or_in_the_log(tmp_path, monkeypatch, protection):
    """Under ``plain`` the uploads are found in the running exchange: the search can find something."""
    if protection == "encrypted":
        pytest.importorskip("tenseal")
    h = Hospitals(tmp_path, protection_name=protection, rounds=1)
    sentinels, log = Sentinels(h), io.StringIO()
    handler = logging.StreamHandler(log)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("secfed")
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    logger.addHandler(handler)
    found, steps = [], 0

    def look(name: str) -> bool:
        nonlocal steps
        if name == "aggregate: after a step is closed":
            steps += 1
            found.extend(sentinels.found_in(everything(h.out)))
        return steps == 5 and name == "aggregate: after a step is closed"

    crash_at(monkeypatch, look)
    try:
        with pytest.raises(Crash):
            h.run(EventLog())
        h.run(EventLog())
    finally:
        logger.removeHandler(handler)
    assert len(sentinels.spellings) >= 2 * 2 * len(h.names)
    assert bool(found) == (protection == "plain")
    assert not sentinels.found_in(everything(h.out))
    assert not sentinels.found_in(log.getvalue().encode())
    messages = [json.loads(line)["message"] for line in log.getvalue().splitlines()]
    assert messages[0] == "study"
    assert messages[-1] == "results"
