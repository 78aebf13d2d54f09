"""``secfed consortium``: what a study centre does to found a consortium and to admit hospitals."""

from __future__ import annotations

import ipaddress
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509
from rich.text import Text

from secfed.cli.asking import confirm, new_passphrase, passphrase_of
from secfed.cli.notify import centre_notify
from secfed.cli.options import AsJson, Compared, NewFolder, NewPassphrase
from secfed.cli.site_folders import ConsortiumArgument, at, chosen
from secfed.cli.site_folders import ConsortiumOption as Folder
from secfed.crypto.identity import fingerprint, grouped
from secfed.deploy.enrolment import messages
from secfed.deploy.enrolment.consortium import Consortium
from secfed.deploy.pki.certificate_checks import Expiry, Urgency, public_der
from secfed.deploy.pki.names import AGGREGATOR
from secfed.errors import ConfigError
from secfed.storage import private_files
from secfed.terminal.consoles import plain_text, plural, print_json, say, stdout
from secfed.terminal.tables import first_that_fits, new_table

StudyName = Annotated[str, typer.Argument(metavar="STUDY", help="Its name.", show_default=False)]

consortium_app = typer.Typer(no_args_is_help=True, help="Found a consortium, admit hospitals.")
consortium_app.command("notify")(centre_notify)


@consortium_app.command()
def init(
    folder: NewFolder,
    name: Annotated[str, typer.Option(help="Name of the consortium.", show_default=False)],
    hosts: Annotated[
        list[str],
        typer.Option(
            "--aggregator-host",
            metavar="HOST",
            help="A name or address of the aggregator; repeat it for every one it may ever have.",
            show_default=False,
        ),
    ],
    port: Annotated[int, typer.Option(min=1, max=65535, help="TCP port of the aggregator.")] = 8443,
    days: Annotated[
        int, typer.Option("--certificate-days", min=1, max=397, help="Lifetime of certificates.")
    ] = 90,
    passphrase: NewPassphrase = False,
) -> None:
    """Found a consortium: CA, the aggregator's identity and certificate, an empty roster. Offline."""
    now, secret = messages.utc_now(), new_passphrase(passphrase)
    made = Consortium.create(
        folder, name, hosts, now=now, port=port, certificate_days=days, passphrase=secret
    )
    typer.echo(f"Founded {name!r} in {folder}; sites will connect to {made.aggregator.address}.")
    if all(map(_only_here, hosts)):
        typer.echo(
            f"Warning: only this machine can connect to {hosts[0]}; a new host name needs a new consortium, "
            "founded with --aggregator-host.",
            err=True,
        )
    typer.echo(f"Aggregator  {fingerprint(made.aggregator.identity_key)}")
    typer.echo(f"Keep {made.ca_key_path} offline when nobody is being admitted.")
    typer.echo(f"Next: secfed consortium admit REQUEST...{at(folder)}")


@consortium_app.command()
def admit(
    requests: Annotated[
        list[Path], typer.Argument(metavar="REQUEST...", help="Request files of sites.", show_default=False)
    ],
    folder: Folder = Path(),
    yes: Compared = False,
) -> None:
    """Admit sites: check their requests, show their fingerprints, write a reply for each.

    Compare every fingerprint with what the site's administrator reads to you. Nothing is changed unless
    all requests are in order.
    """
    consortium = Consortium(folder)
    read = [_read(path) for path in requests]
    _check_together(read)
    for request in read:
        consortium.check(request)
        typer.echo(f"{request.site}  {request.fingerprint}")
    confirm("Are these the fingerprints that the sites read to you?", yes=yes, option="--yes")
    secret = passphrase_of(consortium.ca_key_path)
    for request in read:
        reply = consortium.admit(request, now=messages.utc_now(), passphrase=secret)
        typer.echo(f"Admitted {request.site}; its reply is {reply}")
    roster = consortium.roster()
    digest = "" if roster is None else grouped(roster.digest.hex())
    typer.echo(f"Roster {consortium.roster_path}, digest {digest}")
    typer.echo("Give every site its reply and the roster, and read them the digest over another channel.")


@consortium_app.command()
def remove(
    site: Annotated[str, typer.Argument(metavar="SITE", show_default=False)],
    folder: Folder = Path(),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Take a site out of the roster. Its keys can not be enrolled again."""
    consortium = Consortium(folder)
    consortium.members().member(site)
    typer.echo(
        "A study that has begun with this site cannot go on without it. Let such studies finish first, or "
        "end them with the model they have: secfed aggregate STUDY --end, before the hospitals pin the new "
        "roster."
    )
    confirm(f"Remove {site!r}, for good with these keys?", yes=yes, option="--yes")
    consortium.remove(site, now=messages.utc_now())
    typer.echo(f"Removed {site}. Restart the aggregator, and give every site the new roster to pin.")


@consortium_app.command()
def renew(
    name: Annotated[str, typer.Argument(metavar="SITE", help="A site, or: aggregator.", show_default=False)],
    request: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The site's new request, made by: secfed site renew.")
    ] = None,
    folder: Folder = Path(),
) -> None:
    """Issue a new certificate. The roster stays as it is, so no site has to pin it again."""
    consortium = Consortium(folder)
    if name == AGGREGATOR:
        if request is not None:
            message = "--request: the aggregator's key is made here"
            raise ConfigError(message, remedy="leave the option out for the aggregator")
        secret = passphrase_of(consortium.ca_key_path, *consortium.tls.key_paths)
        certificate = consortium.renew_aggregator(now=messages.utc_now(), passphrase=secret)
        typer.echo(f"Renewed until {certificate.not_valid_after_utc:%Y-%m-%d}; restart the aggregator.")
        return
    made = None if request is None else _read(request)
    secret = passphrase_of(consortium.ca_key_path)
    reply = consortium.renew_site(name, made, now=messages.utc_now(), passphrase=secret)
    typer.echo(f"Renewed; give {reply} to {name}: secfed site join {reply.name}")


@consortium_app.command()
def pause(study: StudyName, folder: Folder = Path()) -> None:
    """Let the aggregator put a study aside before its next exchange; other studies get their turn."""
    Consortium(folder).pause(study)
    go_on = f"secfed consortium resume {study}{at(folder)}"
    typer.echo(f"Paused {study}, where a study of this name is served. To go on: {go_on}")


@consortium_app.command()
def resume(study: StudyName, folder: Folder = Path()) -> None:
    """Let the aggregator go on with a paused study, when its turn comes."""
    Consortium(folder).resume(study)
    typer.echo(f"Resumed {study}.")


@consortium_app.command()
def show(folder: ConsortiumArgument = None, option: Folder = Path(), as_json: AsJson = False) -> None:
    """Show sites, fingerprints, and when certificates end; says so four weeks ahead."""
    consortium = Consortium(chosen(folder, option))
    consortium.restore_roster_file()
    if as_json:
        print_json(_summary(consortium, messages.utc_now()))
    else:
        _show(consortium, messages.utc_now())


def _only_here(host: str) -> bool:
    """Whether a name or address means the machine that asks."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def _read(path: Path) -> messages.Request:
    return messages.Request.verified(private_files.read_json(path, "a request"), str(path))


def _check_together(requests: list[messages.Request]) -> None:
    """Each request may be new to the consortium, and two of them still claim one name or key."""
    claims = [(request.site, request.identity_key, public_der(request.tls_key)) for request in requests]
    if any(len(set(values)) != len(values) for values in zip(*claims, strict=True)):
        message = "two of these requests have the same name or key"
        raise ConfigError(message, remedy="ask those sites for new requests")


_Certificate = tuple[str, str | None, Expiry | None]


def _certificates(consortium: Consortium, now: datetime) -> list[_Certificate]:
    """(owner, fingerprint, when the certificate ends) of everyone, the CA and the aggregator first."""

    def row(owner: str, key: bytes | None, certificate: x509.Certificate | None) -> _Certificate:
        expiry = None if certificate is None else Expiry.of(certificate, now)
        return owner, None if key is None else fingerprint(key), expiry

    return [
        row("CA", None, consortium.ca()),
        row("aggregator", consortium.aggregator.identity_key, consortium.tls.certificate()),
        *(row(one.site, one.identity_key, one.certificate) for one in consortium.members().current.values()),
    ]


def _summary(consortium: Consortium, now: datetime) -> dict[str, object]:
    roster = consortium.roster()
    return {
        "name": consortium.facts.name,
        "address": consortium.aggregator.address,
        "roster_digest": None if roster is None else roster.digest.hex(),
        "paused": list(consortium.paused()),
        "certificates": [
            {
                "owner": owner,
                "fingerprint": shown,
                "expires": None if expiry is None else expiry.end.isoformat(),
                "days_left": None if expiry is None else expiry.days_left,
                "urgency": None if expiry is None else expiry.urgency.value,
            }
            for owner, shown, expiry in _certificates(consortium, now)
        ],
    }


def _show(consortium: Consortium, now: datetime) -> None:
    console, table, due = stdout(), new_table("Owner", "Fingerprint", "Certificate"), []
    for owner, shown, expiry in _certificates(consortium, now):
        table.add_row(plain_text(owner), shown or "–", Text("–") if expiry is None else _coloured(expiry))
        if expiry is not None and expiry.urgency is not Urgency.FINE and owner != "CA":
            due.append(owner)
    roster = consortium.roster()
    sites = plural(0 if roster is None else len(roster.sites), "site")
    say(console, f"{consortium.facts.name}, {consortium.aggregator.address}, {sites}")
    console.print()
    console.print(first_that_fits(console, [table]))
    console.print()
    digest = "none yet: no site is enrolled" if roster is None else grouped(roster.digest.hex())
    say(console, f"Roster digest: {digest}")
    for study in consortium.paused():
        say(console, f"Paused: {study}; to go on: secfed consortium resume {study}{at(consortium.folder)}")
    for owner in due:
        say(console, f"Renew: secfed consortium renew {owner}{at(consortium.folder)}")


def _coloured(expiry: Expiry) -> Text:
    styles = {Urgency.FINE: "", Urgency.SOON: "yellow", Urgency.EXPIRED: "bold red"}
    note = ": renew soon" if expiry.urgency is Urgency.SOON else ""
    return Text(expiry.describe() + note, style=styles[expiry.urgency])
