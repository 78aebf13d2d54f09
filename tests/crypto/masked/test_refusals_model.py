"""Refusals of a finished model: a server that sends another one than it signed, or that signs another one."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from secfed.algorithms.framework.parameters import write_parameters
from secfed.attack.attack import Attack, AttackSetting
from secfed.attack.evidence import Count
from secfed.attack.lone_work import LONE_WORK
from secfed.config.sections import BROADCAST_BOUND
from secfed.crypto import labels
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.messages import FinalModel
from secfed.crypto.refusals import Refusal
from secfed.errors import SecfedError
from secfed.runs.final_model import open_final
from secfed.site.containment import check_broadcast, contained
from secfed.study.warm_start import check_initial_model, digest_of
from secfed.wire.frames import encode_state
from secfed.wire.layout import Exchange, Field, Layout, Summands
from tests.simulator import PROVOKED, provokes

STUDY = "study-5f"
AGGREGATOR = Identity.from_seed("aggregator", bytes(32))
ROSTER = Roster.of(AGGREGATOR, [Identity.from_seed(name, bytes([n]) * 32) for n, name in enumerate("abc", 1)])
MODEL = encode_state({"weight": torch.ones(3)})
HONEST = FinalModel(STUDY, ROSTER.digest, 2, 5, hashlib.sha256(MODEL).digest(), model=MODEL)


def signed(message: FinalModel, identity: Identity = AGGREGATOR) -> FinalModel:
    return replace(message, signature=identity.sign(labels.SIGN_MODEL, message.body()))


def refused(message: FinalModel | bytes, refusal: Refusal) -> None:
    data = message if isinstance(message, bytes) else message.encode()
    with pytest.raises(SecfedError, match=f"refusal {refusal.number}: "):
        open_final(data, ROSTER, STUDY)
    PROVOKED.add(refusal)


def test_an_honest_model_is_taken() -> None:
    assert bytes(open_final(signed(HONEST).encode(), ROSTER, STUDY).model) == MODEL


@provokes(Refusal.MODEL_SIGNATURE)
def test_a_model_that_somebody_else_signed() -> None:
    refused(signed(HONEST, Identity.from_seed("aggregator", bytes([7]) * 32)), Refusal.MODEL_SIGNATURE)
    refused(replace(HONEST, signature=bytes(64)), Refusal.MODEL_SIGNATURE)


@pytest.mark.parametrize("change", [{"round": 3}, {"sums": 6}, {"model_digest": bytes(32)}])
def test_a_statement_that_was_changed_after_signing(change: dict[str, Any]) -> None:
    refused(replace(signed(HONEST), **change), Refusal.MODEL_SIGNATURE)


@provokes(Refusal.MODEL_MISMATCH)
@pytest.mark.parametrize(
    "change",
    [{"study": "another"}, {"roster_digest": bytes(32)}, {"model": encode_state({"weight": torch.zeros(3)})}],
    ids=["another study", "another roster", "other bytes"],
)
def test_a_model_for_something_else(change: dict[str, Any]) -> None:
    refused(signed(replace(HONEST, **change)), Refusal.MODEL_MISMATCH)


def test_bytes_that_are_no_model() -> None:
    refused(signed(HONEST).encode()[:-1], Refusal.MALFORMED)
    refused(signed(HONEST).encode() + b"\0", Refusal.MALFORMED)
    refused(
        signed(replace(HONEST, model=b"#!/bin/sh", model_digest=hashlib.sha256(b"#!/bin/sh").digest())),
        Refusal.MALFORMED,
    )


@provokes(Refusal.OTHER_START)
@pytest.mark.parametrize(
    "sent",
    [
        {"weight": torch.full((3,), 2.0)},
        {"weight": torch.ones(3, 1)},
        {"weight": torch.ones(3, dtype=torch.float64)},
        {"bias": torch.ones(3)},
        {"weight": torch.ones(3), "bias": torch.ones(3)},
        {},
    ],
    ids=["values", "shape", "type", "name", "one more", "nothing"],
)
def test_a_first_broadcast_that_is_not_the_start(sent: dict[str, torch.Tensor]) -> None:
    digest = digest_of({"weight": torch.ones(3)})
    check_initial_model(digest, {"weight": torch.ones(3)})
    with pytest.raises(SecfedError, match=f"refusal {Refusal.OTHER_START.number}: ") as caught:
        check_initial_model(digest, sent)
    assert type(caught.value) is Refusal.OTHER_START.error
    PROVOKED.add(Refusal.OTHER_START)


@provokes(Refusal.BUILDS_ON)
@pytest.mark.parametrize("attack", LONE_WORK[:2], ids=lambda attack: attack.name)
def test_a_sum_that_builds_on_work_that_was_not_asked_for(attack: Attack) -> None:
    found = attack.run(AttackSetting(3))
    assert isinstance(found, Count)
    assert found.refusals == {Refusal.BUILDS_ON.number}
    PROVOKED.add(Refusal.BUILDS_ON)


@provokes(Refusal.BROADCAST_RANGE)
@pytest.mark.parametrize("number", [math.nan, -math.inf, 1e38])
def test_a_broadcast_with_a_number_that_no_training_needs(number: float) -> None:
    with pytest.raises(SecfedError, match="refusal 43: "):
        check_broadcast({"weight": torch.tensor([1.0, number])}, BROADCAST_BOUND)
    PROVOKED.add(Refusal.BROADCAST_RANGE)


@provokes(Refusal.BROADCAST_SHAPE)
def test_a_broadcast_of_another_model() -> None:
    exchange = Exchange("update", "all", Layout((Field("update/weight", (3,), 1.0),), sites=3))
    model = nn.Linear(3, 1, bias=False)

    def work() -> Summands:
        write_parameters(model, {"weight": torch.ones(1, 4)})
        return {"update/weight": model.weight.detach().reshape(3)}

    with pytest.raises(SecfedError, match="refusal 44: "):
        contained(1, exchange, work, dict, pytest.fail)
    PROVOKED.add(Refusal.BROADCAST_SHAPE)
