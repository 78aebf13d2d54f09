"""A log holds secfed's lines only: nobody else's handler writes what an exception says."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from secfed.deploy.transport.json_log import log_as_json


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    logger, secfed = logging.getLogger(), logging.getLogger("secfed")
    before = logger.handlers[:], logger.level, secfed.level
    yield logger
    logger.handlers[:] = before[0]
    logger.setLevel(before[1])
    secfed.setLevel(before[2])


def test_handlers_of_libraries_write_no_tracebacks_beside_the_log(root: logging.Logger) -> None:
    """Opacus calls logging.basicConfig when it is imported, which may be before the log begins."""
    foreign, own = io.StringIO(), io.StringIO()
    root.addHandler(logging.StreamHandler(foreign))
    log_as_json("info", own)
    try:
        raise ValueError("a patient's value")
    except ValueError:
        logging.getLogger("secfed.site").exception("failed")
    assert foreign.getvalue() == ""
    assert json.loads(own.getvalue())["exception"] == "ValueError"
    assert "patient" not in own.getvalue()
