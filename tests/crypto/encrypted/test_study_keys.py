"""A study key is kept before it is used, and a hello that would block the others is not passed on."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("tenseal")

from secfed.crypto import labels
from secfed.crypto.encrypted.bfv import Ring
from secfed.crypto.encrypted.messages import KeyDelivery, KeyHello, KeyPackages, KeyRequest
from secfed.crypto.encrypted.study_keys import KeyPair, StudyKeys, check_hello, key_context
from secfed.crypto.identity import Identity, Roster
from secfed.errors import ConfigError, MalformedMessage, WrongState
from secfed.protection.encrypted import RingKeys

PEOPLE = {name: Identity.from_seed(name, bytes([number]) * 32) for number, name in enumerate("abc")}
ROSTER = Roster.of(Identity.from_seed("aggregator", bytes([99]) * 32), list(PEOPLE.values()))
RING = Ring("bfv", "symmetric", 2048, 53, 0)
CONTEXT = key_context("study", ROSTER, RING, "a")


class Disk:
    """Where a hospital keeps the keys; ``full`` until it is told otherwise."""

    def __init__(self) -> None:
        self.full = True
        self.kept: list[KeyPair] = []

    def keep(self, keys: KeyPair) -> None:
        if self.full:
            raise ConfigError("study-key: No space left on device", remedy="make room")
        self.kept.append(keys)


def keys_of(site: str, disk: Disk | None = None) -> StudyKeys:
    keys = StudyKeys(PEOPLE[site], ROSTER, "study", "abc", "a", RingKeys(RING))
    if disk is not None:
        keys.received = disk.keep
    return keys


def hello_of(keys: StudyKeys) -> KeyHello:
    return KeyHello.decode(keys.hello())


def test_a_holder_that_could_not_keep_its_key_gives_it_to_nobody() -> None:
    """After a restart it would make another key, and the sums under the first one could not be read."""
    disk = Disk()
    holder = keys_of("a", disk)
    for _ in range(2):
        with pytest.raises(ConfigError):
            holder.hello()
    with pytest.raises(WrongState, match="no study key yet"):
        holder.pack(KeyRequest((hello_of(keys_of("b")),)))
    disk.full = False
    assert hello_of(holder).holds_key
    assert disk.kept == [holder.required]


def test_a_site_that_could_not_keep_a_key_takes_it_again() -> None:
    disk = Disk()
    holder, site = keys_of("a"), keys_of("b", disk)
    holder.hello()
    asked = hello_of(site)
    made = KeyPackages.decode(holder.pack(KeyRequest((asked,))))
    delivery = KeyDelivery(made.public_key, made.packages[0])
    with pytest.raises(ConfigError):
        site.unpack(delivery)
    assert hello_of(site).seal_key == asked.seal_key  # it does not claim to hold the key
    disk.full = False
    site.unpack(delivery)
    assert disk.kept == [site.required] == [holder.required]
    assert hello_of(site).holds_key


@pytest.mark.parametrize("seal_key", [b"short", b"\xff" * 1216], ids=["too short", "no key"])
def test_a_signed_hello_without_a_valid_key_does_not_reach_the_holder(seal_key: bytes) -> None:
    """The holder refuses a whole request for it: one hospital would keep the key from all the others."""
    unsigned = KeyHello("c", seal_key)
    signature = PEOPLE["c"].sign(labels.SIGN_KEY_HELLO, *CONTEXT, unsigned.body())
    bad = replace(unsigned, signature=signature)
    holder = keys_of("a")
    holder.hello()
    with pytest.raises(MalformedMessage):
        holder.pack(KeyRequest((hello_of(keys_of("b")), bad)))
    with pytest.raises(MalformedMessage):
        check_hello(bad, ROSTER, CONTEXT)
    check_hello(hello_of(keys_of("c")), ROSTER, CONTEXT)
    check_hello(hello_of(holder), ROSTER, CONTEXT)  # one that holds the key sends none to seal to
