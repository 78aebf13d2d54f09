"""Planned dropouts, as the command line writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secfed.errors import ConfigError
from secfed.simulation.dropouts import Dropout
from secfed.wire.stages import STAGES


@pytest.mark.parametrize(
    ("text", "drop"),
    [
        ("hospital-2@mask:3", Dropout("hospital-2", "mask", 3)),
        ("va@train", Dropout("va", "train", None)),
        ("a@b@unmask:12", Dropout("a@b", "unmask", 12)),
        ("ward:7@share", Dropout("ward:7", "share", None)),
        ("Zürich Süd@consistency:1", Dropout("Zürich Süd", "consistency", 1)),
    ],
)
def test_reads_what_the_help_promises(text: str, drop: Dropout) -> None:
    assert Dropout.parse(text) == drop


@given(st.text(min_size=1), st.sampled_from(STAGES), st.none() | st.integers(1, 10**9 - 1))
def test_what_is_written_is_read_back(site: str, stage: str, round_number: int | None) -> None:
    drop = Dropout(site, stage, round_number)
    assert Dropout.parse(str(drop)) == drop


def test_an_unknown_stage_is_refused_with_the_list() -> None:
    with pytest.raises(ConfigError) as caught:
        Dropout.parse("hospital-2@upload:3")
    assert "'upload'" in caught.value.message
    assert (
        caught.value.remedy
        == "use one of: train, advertise, choose, share, confirm, mask, consistency, unmask"
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "hospital-2", "@mask", "@mask:1", "h@", "h@mask:", "h@mask:0", "h@mask:-1", "h@mask:x"),
        *("h@mask:1.5", "h@mask:١", "h@mask:1:2", "h@MASK", "h@mask :1", "h@mask:" + "9" * 5000),
    ],
)
def test_anything_else_is_a_clear_error(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Dropout.parse(text)
    assert caught.value.message.startswith("--drop")
    assert caught.value.remedy
