"""The published vectors: today's code makes the same files, and reads them as other implementations would."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from secfed.crypto import labels, messages
from secfed.crypto.identity import Roster
from secfed.crypto.lanes import Run, VectorShape
from secfed.crypto.masked import graph_messages
from secfed.crypto.masked.server import MaskedServer
from secfed.crypto.messages import Result, Specification
from secfed.crypto.refusals import Refusal
from tests.simulator import STAGES
from tests.vectors import generate
from tests.vectors.bad import OPERATIONS, check
from tests.vectors.closed import open_closed
from tests.vectors.messages import as_json
from tests.vectors.replay import rebuild, request_to

ALL_MESSAGES = (*messages.ALL, *graph_messages.ALL)


@cache
def load(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((generate.FOLDER / name).read_text(encoding="utf-8"))
    return content


BAD_FILES = (
    "bad_messages.json",
    "bad_arithmetic.json",
    "bad_keys.json",
    "bad_model.json",
    "bad_site.json",
    "bad_closed.json",
    "bad_keystream_aes.json",
)
BAD = [case for name in BAD_FILES for case in load(name)["cases"]]


def test_the_code_makes_the_published_files() -> None:
    assert generate.differences(generate.generate()) == []


def test_the_command_line_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed byte, a missing and a stray file are found; the envelopes in a good copy are used again."""
    folder = tmp_path / "v1"
    shutil.copytree(generate.FOLDER, folder)
    assert generate.main(["--check", "--folder", str(folder)]) == 0
    lanes = folder / "lanes.json"
    lanes.write_text(lanes.read_text().replace('"bits": 9', '"bits": 10'))
    (folder / "shamir.json").unlink()
    (folder / "other.json").write_text("{}")
    assert generate.main(["--check", "--folder", str(folder)]) == 1
    problems = capsys.readouterr().err
    assert "lanes.json: line" in problems
    assert "shamir.json: missing" in problems
    assert "other.json: nothing makes this file" in problems
    assert len(problems.splitlines()) == 3


@pytest.mark.parametrize("site", [f"hospital-{index}" for index in range(5)])
def test_a_site_rebuilt_from_the_file_gives_the_recorded_replies(site: str) -> None:
    vectors = load("attempt.json")
    dropped = site not in vectors["survivors"]
    session = rebuild(vectors, site, "mask" if dropped else None)
    if dropped:
        assert session.result is None
        assert "mask" not in {stage for stage in STAGES if site in vectors["replies"].get(stage, {})}
    else:
        assert session.result == Result.decode(request_to(vectors, "result", site))


def test_a_server_given_the_recorded_replies_gives_the_recorded_requests_and_sums() -> None:
    vectors = load("attempt.json")
    roster = Roster.decode(bytes.fromhex(vectors["roster"]))
    spec = Specification.decode(request_to(vectors, "advertise", "hospital-0"))
    runs = tuple(Run(bits, count) for bits, count in vectors["layout"]["runs"])
    server = MaskedServer(spec, roster, VectorShape(runs, bytes.fromhex(vectors["layout"]["digest"])))
    requests = server.begin()
    for stage in STAGES[:-1]:
        assert server.stage == stage
        for site, request in requests.items():
            assert bytes(request) == request_to(vectors, stage, site)
            if site in vectors["replies"][stage]:
                server.receive(site, bytes.fromhex(vectors["replies"][stage][site]))
        requests = server.advance()
    assert [run.tolist() for run in server.sums] == vectors["sums"]
    assert list(server.survivors) == vectors["survivors"]
    added = [
        np.sum(
            [vectors["sites"][site]["ring_integers"][index] for site in server.survivors],
            axis=0,
            dtype=object,
        )
        % (1 << run.bits)
        for index, run in enumerate(runs)
    ]
    assert [list(run) for run in added] == vectors["sums"]


@pytest.mark.parametrize("case", load("messages.json")["messages"], ids=lambda case: case["name"])
def test_an_encoding_is_read_as_the_fields_beside_it(case: dict[str, Any]) -> None:
    (kind,) = (one for one in ALL_MESSAGES if case["type"] == one.TYPE)
    message = kind.decode(bytes.fromhex(case["encoding"]))
    assert json.loads(json.dumps(as_json(message))) == case["fields"]
    assert message.encode().hex() == case["encoding"]


def test_a_closed_sum_is_opened_to_the_integers_of_its_uploads() -> None:
    vectors = load("closed.json")
    survivors = [upload["site"] for upload in vectors["uploads"]]
    runs = open_closed({**vectors, "input": vectors["closed_sum"], "survivors": survivors}, {})
    assert [run.tolist() for run in runs] == vectors["opened"]
    for index, (bits, _) in enumerate(vectors["runs"]):
        added = np.sum([upload["integers"][index] for upload in vectors["uploads"]], axis=0, dtype=object)
        assert list(added % (1 << bits)) == vectors["opened"][index]


def test_masks_of_aes_are_plain_counter_mode() -> None:
    """With a counter of 128 bits that is set for every segment, as the file says."""
    vectors = load("keystream_aes.json")

    def read(key: str, segment: int, size: int) -> bytes:
        mode = CTR((segment << 32 | 2).to_bytes(16, "big"))
        return Cipher(AES256(bytes.fromhex(key)), mode).encryptor().update(bytes(size))

    for case in vectors["segments"]:
        assert read(vectors["stream_key"], case["segment"], 80).hex() == case["first_80_bytes"]
    wide = next(run for run in vectors["masked"]["runs"] if run["bits"] == 64)
    added, taken = (np.frombuffer(read(key, 1, 40), "<u8") for key in wide["stream_keys"])
    lanes = np.arange(wide["count"] - 5, wide["count"], dtype=np.uint64) + added - taken
    assert lanes.tobytes()[:5].hex() == wide["bytes_around_the_second_segment"][32:]
    closed = vectors["closed"] | {"keystream": vectors["keystream"], "input": vectors["closed"]["closed_sum"]}
    survivors = [upload["site"] for upload in closed["uploads"]]
    runs = open_closed(closed | {"survivors": survivors}, {})
    assert [run.tolist() for run in runs] == closed["opened"]


def test_every_message_type_and_every_label_has_a_vector() -> None:
    assert {case["type"] for case in load("messages.json")["messages"]} == {
        kind.TYPE for kind in ALL_MESSAGES
    }
    published = load("labels.json")["labels"]
    assert published == {k: v.decode() for k, v in vars(labels).items() if isinstance(v, bytes)}
    assert len(set(published.values())) == len(published)


@pytest.mark.parametrize("case", BAD, ids=lambda case: case["name"])
def test_a_bad_vector_fails_as_it_says(case: dict[str, Any]) -> None:
    assert case["name"].startswith("bad_")
    check(case, load("attempt.json"))


def test_bad_vectors_have_names_of_their_own_and_cover_every_operation() -> None:
    names = [case["name"] for case in BAD]
    assert len(set(names)) == len(names)
    assert {case["operation"] for case in BAD} == set(OPERATIONS)


def test_bad_vectors_cover_the_refusals_that_a_message_can_provoke() -> None:
    """The others need a site with another history or policy (see tests/crypto/test_refusals.py)."""
    elsewhere = {
        Refusal.OLD_ATTEMPT,
        Refusal.ALREADY_SPENT,
        Refusal.LAYOUT_TOO_LARGE,
        Refusal.PRIVACY_FLOOR,
        Refusal.ADVERT_OUTSIDER,
        Refusal.DUPLICATE_KEY,
        Refusal.JOURNAL_ROLLED_BACK,
        Refusal.NOT_PLANNED,
        Refusal.TOO_FEW_CONTRIBUTORS,
        Refusal.OTHER_START,  # outside any attempt: tests/secfed/study/test_warm_start.py
        Refusal.BROADCAST_RANGE,  # of a task: tests/secfed/site/test_silence.py
        Refusal.BROADCAST_SHAPE,  # the same
        Refusal.TOO_MANY_ATTEMPTS,  # of a sparse graph: tests/crypto/masked/test_sparse.py
        Refusal.CHOICE_SIGNATURE,  # the same
        Refusal.NEIGHBOURHOOD,  # the same
        Refusal.UPLOAD_UNPROVEN,  # the same
        Refusal.BUILDS_ON,  # of a task: tests/algorithms/framework/test_links.py
    }
    covered = {case["refusal"] for case in BAD if "refusal" in case}
    assert covered == {refusal.number for refusal in set(Refusal) - elsewhere}


def test_the_files_stay_small() -> None:
    sizes = {path.name: path.stat().st_size for path in generate.FOLDER.glob("*.json")}
    assert sum(sizes.values()) < 600_000, sizes
