"""The group key of closed sums: whom it is for, and that a delivery fits one key."""

from __future__ import annotations

from pathlib import Path

import pytest

from secfed.config.schema import checked
from secfed.config.sections import ProtectionSection
from secfed.crypto import labels
from secfed.crypto.codec import digest
from secfed.crypto.encrypted.messages import KeyDelivery, KeyHello, KeyPackages, KeyRequest
from secfed.crypto.encrypted.study_keys import KeyPair, StudyKeys
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.masked.closing import group_key_check
from secfed.errors import ConfigError, MalformedMessage
from secfed.protection.closed import GroupKeys
from secfed.runs.run_folder import MODEL_FILE
from secfed.simulation.simulate import simulate
from secfed.study.study import Study

STUDY = """
[study]
name = "wards"
rounds = 1

[algorithm]
name = "fedavg"

[model]
name = "logistic-regression"

[data]
name = "breast-cancer"
sites = 5
"""
PEOPLE = {name: Identity.from_seed(name, bytes([number]) * 32) for number, name in enumerate("ab")}
ROSTER = Roster.of(Identity.from_seed("aggregator", bytes([99]) * 32), list(PEOPLE.values()))


def delivered(given: KeyPair | None = None) -> tuple[StudyKeys, KeyDelivery]:
    """A site that asked, and what the holder of these keys sends it."""
    holder, site = (StudyKeys(PEOPLE[name], ROSTER, "study", "ab", "a", GroupKeys()) for name in "ab")
    holder.restore(given, None)
    holder.hello()
    made = KeyPackages.decode(holder.pack(KeyRequest((KeyHello.decode(site.hello()),))))
    return site, KeyDelivery(made.public_key, made.packages[0])


def test_messages_about_group_keys_are_bound_to_closed_sums() -> None:
    assert GroupKeys().digest == digest(labels.CLOSED_SUMS)


def test_a_delivery_names_its_key_and_does_not_show_it() -> None:
    site, delivery = delivered()
    site.unpack(delivery)
    key = site.required.secret_key
    assert (len(key), delivery.public_key) == (32, group_key_check(key))
    assert GroupKeys().generate().public_key != delivery.public_key
    assert key not in delivery.encode()


@pytest.mark.parametrize(
    "given",
    [
        KeyPair(secret_key=b"g" * 32, public_key=b""),
        KeyPair(secret_key=b"g" * 32, public_key=group_key_check(b"h" * 32)),
        KeyPair(secret_key=b"g" * 31, public_key=group_key_check(b"g" * 31)),
    ],
    ids=["no check", "another key's", "short"],
)
def test_a_key_that_is_not_the_one_named_is_refused(given: KeyPair) -> None:
    """Otherwise the holder could give each site another key under one signed delivery."""
    site, delivery = delivered(given)
    with pytest.raises(MalformedMessage, match="group key"):
        site.unpack(delivery)
    assert site.keys is None


def test_the_remedy_for_a_key_holder_under_open_sums_names_closed_ones() -> None:
    settings = {"name": "masked", "key_holder": "a"}
    with pytest.raises(ConfigError, match="key_holder: has no effect") as caught:
        checked(ProtectionSection, settings, "protection")
    assert 'protection.reveal = "sites"' in (caught.value.remedy or "")


def test_closed_sums_on_a_sparse_graph_under_aes_give_the_model_of_open_ones_on_the_complete_graph(
    tmp_path: Path,
) -> None:
    study = Study.parse(STUDY)
    models = []
    for number, keys in enumerate(({}, {"reveal": "sites", "graph": "sparse", "keystream": "aes-256-ctr"})):
        for key, value in keys.items():
            study = study.replace(f"protection.{key}", value)
        simulate(study, out=tmp_path / str(number))
        models.append((tmp_path / str(number) / MODEL_FILE).read_bytes())
    assert models[0] == models[1]
