"""The server of ``secfed console``: on the loopback of this machine, and nowhere else."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import uvicorn

from secfed.console.centre import Centre
from secfed.console.guard import ENTER, Guard
from secfed.console.hospital import Hospital
from secfed.console.pages import Console, make_app
from secfed.console.records import Records
from secfed.console.sign_in import LOOPBACK, SignIn
from secfed.deploy.admission.persons import account
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.errors import ConfigError
from secfed.records.roster_file import AGGREGATOR

_REGISTERED: Final = "end what has it, or choose another in site.toml and at the identity provider"
_SITE_FILE: Final = "request.json"
_CONSORTIUM_FILE: Final = "consortium.json"


def opened(folders: Sequence[Path]) -> Console:
    """What some folders hold: a site's, a consortium's with its runs, or records alone.

    ``ConfigError``: a folder that does not exist, or several of which one is a site's.
    """
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder", remedy="name a site's, a consortium's or a run's")
    sites = [folder for folder in folders if (folder / _SITE_FILE).is_file()]
    if sites and len(folders) > 1:
        message = f"{sites[0]}: is a site's folder, and a console shows one site"
        raise ConfigError(message, remedy="name this folder alone")
    if sites:
        hospital = Hospital(sites[0])
        return Console(hospital, None, hospital.records, account(), _sign_in(hospital.site))
    centres = [folder for folder in folders if (folder / _CONSORTIUM_FILE).is_file()]
    if len(centres) > 1:
        raise ConfigError("several consortia are named", remedy="name one, and the folders of its runs")
    runs = [folder for folder in folders if folder not in centres]
    centre = Centre(centres[0] if centres else None, runs)
    if not centres and not centre.runs():
        message = f"{folders[0]}: neither a site's folder nor a consortium's, and no run is in it"
        raise ConfigError(message, remedy="name one, or the folder that --out named")
    pinned = [centre.consortium.roster_path] if centre.consortium else []
    records = Records(runs, pinned, owner=AGGREGATOR)  # hospitals' own records are not for here
    return Console(None, centre, records if runs else None, account())


def _sign_in(site: SiteFolder) -> SignIn | None:
    """How people sign in, where ``[oidc]`` of ``site.toml`` says so."""
    settings = site.settings.oidc
    if settings.issuer is None:
        return None
    from secfed.console.provider import Provider  # needs the extra `oidc`

    return SignIn(Provider(settings, site.folder), settings.max_age_s, settings.port)


def serve(console: Console, port: int, ready: Callable[[str], None]) -> None:
    """Serve until interrupted; ``ready`` is called with the address that works once.

    ``ConfigError``: a port is taken, or was chosen where people sign in.
    """
    sign_in = console.sign_in
    if sign_in is not None and port:
        # Whoever served a known port earlier can have left a program in the browser that reads every page.
        raise ConfigError(
            f"--port {port}: where people sign in, the pages have no port that others know beforehand",
            remedy="leave it out",
        )
    with ExitStack() as stack:
        sockets = []
        if sign_in is not None:  # first: no free port that the pages get is this one
            sockets = [
                stack.enter_context(_listening(f"oidc.port {sign_in.port}", sign_in.port, _REGISTERED))
            ]
        own = stack.enter_context(_listening(f"--port {port}", port, "choose another, or leave it out"))
        number = own.getsockname()[1]
        guard = Guard(make_app(console), number, sign_in)
        if console.records is not None:
            console.records.report()  # before anybody waits for it
        ready(f"http://{LOOPBACK}:{number}{ENTER}?token={guard.token}")
        # No access log: the address with the token would be in it.
        config = uvicorn.Config(
            guard, log_level="warning", access_log=False, server_header=False, proxy_headers=False, ws="none"
        )
        uvicorn.Server(config).run(sockets=[own, *sockets])


def _listening(key: str, port: int, remedy: str) -> socket.socket:
    """A socket that holds a port of the loopback. ``ConfigError``: it is taken."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((LOOPBACK, port))
        made.listen(64)
    except OSError as error:
        made.close()
        raise ConfigError(f"{key}: {os.strerror(error.errno or 0)}", remedy=remedy) from None
    return made
