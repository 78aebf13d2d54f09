"""Plays scripts for a whole site behind its frames, from the file alone."""

from __future__ import annotations

from secfed.crypto.attempt import SiteLimits
from secfed.crypto.identity import Identity, Roster
from secfed.errors import SecfedError
from secfed.protection.registry import MASKED
from secfed.records.transcript import Transcript
from secfed.site.journal import Journal
from secfed.site.parts import Agreement, Draws, Member, Services
from secfed.site.session import Site
from tests.vectors.primitives import Json
from tests.vectors.scripts.book import put_together, steps_of
from tests.vectors.scripts.closed_case import closed_site, packed
from tests.vectors.scripts.planned import Planned, Store
from tests.vectors.scripts.play import Differs, Heard, opened, refusal_number


def build(content: Json, party: Json) -> Site:
    """The site of a script."""
    if "holder" in party:
        return closed_site(content, party)
    roster = Roster.decode(bytes.fromhex(party["roster"]))
    identity = Identity.from_seed(party["site"], bytes.fromhex(party["identity_seed"]))
    algorithm, study = Planned(party), party["study"]
    agreement = Agreement(
        study,
        algorithm,
        MASKED,
        roster.sites,
        begins_with=bytes.fromhex(party["begins_with"]) if "begins_with" in party else None,
        broadcast_bound=float.fromhex(party["broadcast_bound"]),
    )
    return Site(
        Member(identity, roster),
        agreement,
        algorithm.site(identity.name),
        limits=SiteLimits(**party["limits"]),
        draws=Draws.seeded(0, identity.name),
        store=Store(Journal(), study, content["draws"]["first"]),
        services=Services(Transcript(identity, study=study, roster_digest=roster.digest)),
    )


def handled(site: Site, frame: bytes) -> tuple[bytes | None, int | None]:
    """The reply, or None and the number of the refusal if it has one."""
    try:
        return bytes(site.handle(frame)), None
    except SecfedError as error:
        return None, refusal_number(error)


def play_frames(script: Json, content: Json) -> None:
    """Play one script; AssertionError where the site does something else."""
    party = {**content["party"], **script.get("party", {})}
    site, heard = build(content, party), Heard()
    for number, step in enumerate(steps_of(script, content), start=1):
        frame = put_together(step["in"], content["bytes"])
        reply, refusal = handled(site, frame)
        where = f"{script['name']}, step {number}"
        if reply is None or "refusal" in step:
            if reply is not None or "refusal" not in step or step["refusal"] != refusal:
                raise Differs(f"{where}: {refusal if reply is None else 'not refused'}")
            continue
        if frame[:1] == b"\2":
            heard.note(frame[11:])
        if "sharing" in step:
            found = opened(reply, heard, party, content["keys"])
            if found != content["sharings"][step["sharing"]]:
                raise Differs(f"{where}: other envelopes than recorded")
        elif "packages" in step:
            if packed(reply, party, content["keys"]) != content["packages"][step["packages"]]:
                raise Differs(f"{where}: other packages than recorded")
        elif reply != put_together(step["out"], content["bytes"]):
            raise Differs(f"{where}: another reply than the recorded one")
