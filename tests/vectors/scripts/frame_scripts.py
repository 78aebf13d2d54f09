"""A whole site behind its frames: which tasks, steps and notices it takes, and in which order."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import Any, Final

import torch

from secfed.crypto import labels
from secfed.crypto.masked.client import MaskedSite
from secfed.crypto.message_base import signed
from secfed.crypto.messages import Advert, Adverts, FinalModel, Specification
from secfed.wire.frames import Notice, Step, Task, encode_state
from secfed.wire.layout import state_digest
from tests.vectors.primitives import Json
from tests.vectors.scripts.book import Book, shortened
from tests.vectors.scripts.closed_case import is_packages, packed
from tests.vectors.scripts.frame_play import build, handled
from tests.vectors.scripts.planned import Planned
from tests.vectors.scripts.play import Heard, is_sharing, opened
from tests.vectors.scripts.site_builder import Scripts
from tests.vectors.scripts.world import COHORT, ME, STUDY, World

FIELDS: Final = [["weight", [3], (4.0).hex(), 16], ["count", [], (1000.0).hex(), 64]]
# Multiples of 2^-e: they become the same integers whatever the random words are.
VALUES: Final = {"weight": [0.5, -1.25, 4.0], "count": 250.0}
PLAN: Final = {"3": ["first", "update"], "4": ["first", "update"]}


class Writer:
    """Writes scripts while it plays them."""

    prefix = "frames"

    def __init__(self, scripts: Scripts, world: World) -> None:
        self.world, self.book, self.scripts = world, Book(), list[Json]()
        self.sharings: dict[str, list[Json]] = {}
        self.packages: dict[str, list[Json]] = {}
        limits = {"min_cohort": 3, "min_threshold": 3, "colluders": 1}
        self.content: Json = {
            "about": "a site behind its frames, under masked protection; README.md has the format",
            "party": {
                **{name: scripts.party[name] for name in ("roster", "site", "identity_seed", "study")},
                "layout_sites": len(world.roster.sites),
                "fields": FIELDS,
                "plan": PLAN,
                "values": VALUES,
                "broadcast": {"model": [2]},
                "broadcast_bound": (1e6).hex(),
                "limits": limits,
            },
            "draws": {"first": scripts.draws["first"]},
            "keys": scripts.keys,
            "sharings": self.sharings,
        }
        self.layout = Planned(self.content["party"]).layout

    def script(self, name: str, *steps: tuple[Any, ...], **party: Any) -> None:
        """Frames, each alone if it is answered, with None or a number if it is refused."""
        knows = {**self.content["party"], **party}
        site, heard, made = build(self.content, knows), Heard(), list[Json]()
        for frame, *expected in steps:
            data = frame if isinstance(frame, bytes) else frame.encode()
            reply, refusal = handled(site, data)
            if (reply is None) != bool(expected) or (expected and expected[0] != refusal):
                raise AssertionError(f"{name}: {reply!r}, {refusal}")
            step: Json = {"in": self.book.parts(data)}
            if reply is not None and data[:1] == b"\2":
                heard.note(data[11:])
            if reply is None:
                step["refusal"] = refusal
            elif is_packages(reply):
                self.packages["packages"] = packed(reply, knows, self.content["keys"])
                step["packages"] = "packages"
            elif reply[:9] == b"secfed/v1" and is_sharing(reply):
                self.sharings["sharing"] = opened(reply, heard, knows, self.content["keys"])
                step["sharing"] = "sharing"
            else:
                step["out"] = self.book.parts(reply)
            made.append(step)
        script = {"name": f"{self.prefix}_{name}", **({"party": party} if party else {}), "steps": made}
        self.scripts.append(script)


def _state(*values: float, name: str = "model") -> bytes:
    return encode_state({name: torch.tensor(values, dtype=torch.float64)})


def frame_content(world: World, scripts: Scripts) -> Json:
    """The file."""
    writer = Writer(scripts, world)
    broadcast = _state(0.25, -1e6)
    shape = writer.layout.shape

    def spec(**changes: Any) -> Specification:
        named: dict[str, Any] = {"layout_digest": shape.digest, "broadcast_digest": state_digest(broadcast)}
        return world.specification(**{**named, **changes})

    first = spec()
    given = {"shape": shape, "broadcast_digest": state_digest(broadcast)}
    sites = {name: MaskedSite(world.contribution(name, **given)) for name in COHORT}
    adverts = Adverts(tuple(Advert.decode(sites[name].handle(first.encode())) for name in COHORT)).encode()

    def task(
        *, state: bytes = broadcast, study: str = STUDY, at: tuple[int, int] = (3, 1), name: str = "update"
    ) -> Task:
        return Task(study, *at, name, state)

    def step(message: bytes, attempt: int = 0, at: tuple[int, int] = (3, 1)) -> Step:
        return Step(*at, attempt, message)

    begin, go_on = step(first.encode()), step(adverts)
    writer.book.add("task", task().encode())
    writer.book.add("specification", begin.encode())
    writer.book.add("adverts", go_on.encode())
    writer.script("two_messages", (task(),), (begin,), (go_on,))
    refused_tasks: dict[str, tuple[Task, int | None]] = {
        "of_another_study": (task(study="another"), None),
        "of_an_exchange_that_is_not_there": (task(at=(3, 2)), None),
        "of_an_exchange_that_stands_elsewhere": (task(at=(3, 0)), None),
        "of_a_round_that_is_not_there": (task(at=(5, 1)), None),
        "not_a_number": (task(state=_state(math.nan, 0.0)), 43),
        "infinite": (task(state=_state(0.0, -math.inf)), 43),
        "beyond_the_bound": (task(state=_state(0.0, math.nextafter(1e6, 2e6))), 43),
        "of_another_shape": (task(state=_state(0.0)), 44),
        "of_another_name": (task(state=_state(0.0, 0.0, name="x")), 44),
        "without_tensors": (task(state=b"none"), None),
    }
    for name, (frame, number) in refused_tasks.items():
        writer.script(f"task_{name}", (frame, number), (begin, None), (task(),), (begin,))
    writer.script("task_again", (task(),), (task(),), (begin,), (task(),), (go_on,))
    writer.script("task_from_another_broadcast", (task(),), (task(state=_state(0.0, 0.0)), None), (begin,))
    earlier, later = task(at=(3, 0), name="first"), task(at=(4, 0), name="first")
    writer.script("task_of_an_earlier_exchange", (task(),), (earlier, None), (begin,))
    writer.script("task_of_an_earlier_round", (later,), (task(), None), (begin, None))
    writer.script("tasks_in_order", (earlier,), (task(),), (begin,), (later,), (go_on, None))
    writer.script("step_before_the_task", (begin, None))
    writer.script("step_of_another_round", (task(),), (step(first.encode(), at=(4, 1)), None), (begin,))
    writer.script("step_of_another_exchange", (task(),), (step(first.encode(), at=(3, 0)), None), (begin,))
    second = spec(attempt=1).encode()
    writer.script("attempt_that_is_not_the_signed_one", (task(),), (step(first.encode(), 1), 10), (begin,))
    running = (task(),), (begin,)
    writer.script("a_false_attempt_ends_nothing", *running, (step(first.encode(), 1), 10), (go_on,))
    altered = replace(spec(attempt=1), threshold=3).encode()
    writer.script("a_refused_attempt_ends_nothing", *running, (step(altered, 1), 3), (go_on,))
    writer.script("a_higher_attempt_needs_a_specification", *running, (step(adverts, 1), 2), (go_on,))
    writer.script("a_higher_attempt_that_is_cut_off", *running, (step(second[:-1], 1), 1), (go_on,))
    writer.script("a_lower_attempt", (task(),), (step(second, 1),), (begin, None), (step(adverts), None))
    writer.script("a_higher_attempt_takes_over", *running, (step(second, 1),), (go_on, None))
    writer.script("a_refusal_ends_the_attempt", *running, (step(adverts[:-1]), 1), (go_on, None))
    writer.script("the_specification_again", *running, (begin, 2), (go_on, None))
    _notices(writer, world)
    start = {"plan": {"1": ["first", "update"], **PLAN}, "begins_with": hashlib.sha256(broadcast).hexdigest()}
    right, wrong = (task(at=(1, 0), name="first", state=one) for one in (broadcast, _state(0.25, 1e6)))
    writer.script("start_with_the_model_of_the_study", (right,), (task(at=(1, 1)),), **start)
    later_ones = (right, 42), (task(at=(1, 1)), 42), (task(), 42)
    writer.script("start_with_another_model", (wrong, 42), *later_ones, **start)
    writer.script("start_at_a_later_exchange", (task(state=_state(0.25, 1e6)),), **start)
    writer.script(
        "no_frame", (b"", None), (b"\0", None), (b"\4" + begin.encode()[1:], None), (task(),), (begin,)
    )
    writer.script(
        "frames_cut_off", (task().encode()[:9], None), (begin.encode()[:10], None), (task(),), (begin,)
    )
    return {**writer.content, "bytes": writer.book.content(), "scripts": shortened(writer.scripts)}


def _notices(writer: Writer, world: World) -> None:
    model = _state(1.0, 2.0)
    unsigned = FinalModel(STUDY, world.roster.digest, 4, 4, hashlib.sha256(model).digest(), model=model)
    final = signed(unsigned, world.aggregator, labels.SIGN_MODEL)
    by_site = signed(unsigned, world.people[ME], labels.SIGN_MODEL)
    other = signed(replace(unsigned, study="another"), world.aggregator, labels.SIGN_MODEL)
    notice = Notice(final.encode())
    writer.book.add("final model", notice.encode())
    writer.script("final_model", (notice,), (notice,))
    writer.script("final_model_signed_by_a_site", (Notice(by_site.encode()), 40), (notice,))
    writer.script("final_model_of_another_study", (Notice(other.encode()), 41), (notice,))
    writer.script("final_model_cut_off", (Notice(final.encode()[:-1]), 1), (notice,))
    writer.script("notice_of_something_else", (Notice(world.specification().encode()), None), (notice,))
