"""The pages: which address shows what, and what a form does."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import resources
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from secfed.audit.languages import LANGUAGES, again, number, say, spoken
from secfed.audit.privacy import phrases, to_json
from secfed.audit.privacy.record_sections import in_line, in_words, place
from secfed.audit.recognised import known_or_own, recognised
from secfed.audit.render.chromium import browser, print_to_pdf
from secfed.config.protections import CLOSED
from secfed.console.centre import Centre
from secfed.console.hospital import Hospital
from secfed.console.language import Speaking
from secfed.console.records import Departure, Records
from secfed.console.sign_in import SignIn
from secfed.deploy.admission import near_twins, persons
from secfed.deploy.admission.person import Person
from secfed.errors import PolicyRefused, SecfedError
from secfed.site import lost_memory

_REPORT_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"
_DONE: Final = {
    "approved": "Approved, and written into the signed decision log.",
    "approved-later": "Approved. The agent writes it into the decision log before the study works.",
    "first": "Noted. The study runs once a second person approves it from another account.",
    "first-signed-in": "Noted. The study runs once a second person signs in here and approves it.",
    "refused": "Refused, and written into the signed decision log.",
    "refused-later": "Refused. The agent writes it into the decision log.",
}
_LIVE_S: Final = 10
_THEN: Final = re.compile(r"/|/studies(/[0-9a-f]{64})?|/(budgets|left|decisions|setup|records)")
_WAIT: Final = "/sign-in/wait"
_SIGN_IN: Final = "sign in on a page of the console, and decide again"
_ADDRESS: Final = re.compile(r'\b(?:href|action|src)="(?=/)')  # of the console's own pages
_READERS: Final = {
    "masked": "The aggregator reads sums over the hospitals, and nothing of a single one.",
    CLOSED: "The hospitals read sums. The aggregator reads nothing of a hospital, and no sum.",
    "encrypted": "The hospitals read sums, the aggregator nothing; one hospital that helped it would be "
    "enough to read what every hospital sent.",
    "plain": "The aggregator reads this hospital's own numbers. Nothing protects them.",
}


@dataclass(frozen=True)
class Console:
    """What is shown: a hospital, a study centre, or records alone."""

    hospital: Hospital | None
    centre: Centre | None
    records: Records | None
    account: str
    sign_in: SignIn | None = None  # where persons sign in before they decide

    @property
    def name(self) -> str:
        """Whose console it is."""
        return self.hospital.name if self.hospital else self.centre.name if self.centre else say("Records")

    @property
    def person(self) -> Person | None:
        """Who decides: the account of this machine, or who signed in; None where nobody has."""
        return Person(self.account) if self.sign_in is None else self.sign_in.person

    @property
    def links(self) -> list[tuple[str, str]]:
        """Addresses and titles of the pages."""
        found = []
        if self.hospital:
            found += [("/", say("Now")), ("/studies", say("Studies")), ("/budgets", say("Budgets"))]
            found += [("/left", say("What left")), ("/decisions", say("Decisions"))]
            found += [("/setup", say("Certificates, policy"))]
        elif self.centre:
            found += [("/", say("Studies")), ("/hospitals", say("Hospitals"))]
        return [*found, ("/records", say("Records"))] if self.records else found


def make_app(console: Console) -> Starlette:
    """The application behind the guard."""
    pages = _Pages(console)
    routes = [Route("/static/console.css", _style), Route("/records", pages.records)]
    routes += [Route("/records/verify", pages.verify, methods=["POST"])]
    routes += [Route(f"/records/report.{kind}", pages.export(kind)) for kind in ("html", "pdf", "json")]
    if console.hospital:
        routes += [
            Route("/", pages.now),
            Route("/studies", pages.studies),
            Route("/studies/{digest:str}", pages.study),
            Route("/studies/{digest:str}/decide", pages.decide, methods=["POST"]),
            Route("/budgets", pages.budgets),
            Route("/left", pages.left),
            Route("/decisions", pages.decisions),
            Route("/setup", pages.setup),
            Route("/sign-in", pages.sign_in, methods=["POST"]),
            Route(_WAIT, pages.wait_for_sign_in),
            Route("/sign-out", pages.sign_out, methods=["POST"]),
        ]
    elif console.centre:
        routes += [
            Route("/", pages.centre),
            Route("/hospitals", pages.hospitals),
            Route("/runs/{address:str}", pages.run),
        ]
    else:
        routes += [Route("/", pages.records)]
    handlers: Any = {HTTPException: pages.http_error, SecfedError: pages.failed}
    return Starlette(routes=routes, exception_handlers=handlers, middleware=[Middleware(Speaking)])


class _Pages:
    """Handlers; those that read folders are plain functions, which Starlette runs in threads."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def _show(self, request: Request, name: str, *, status: int = 200, **values: Any) -> Response:
        page = _ENVIRONMENT.get_template(f"{name}.html.j2")
        live = request.query_params.get("live") == "1" and values.get("can_live", False)
        text = page.render(
            console=self._console,
            path=request.url.path.removeprefix(_base(request)),
            csrf=getattr(request.state, "csrf", ""),
            live_s=_LIVE_S if live else None,
            done=say(_DONE.get(request.query_params.get("done", ""), "")),
            can_live=values.pop("can_live", False),
            person=self._console.person,
            **values,
        )
        # Here, once: a template that forgot it would lead nowhere. A quotation mark is never a study's own.
        return HTMLResponse(_ADDRESS.sub(rf"\g<0>{_base(request)}", text), status)

    # --- hospital ----------------------------------------------------------------------------------------

    @property
    def _hospital(self) -> Hospital:
        if self._console.hospital is None:
            raise HTTPException(404)
        return self._console.hospital

    def now(self, request: Request) -> Response:
        """What runs, what waits, what left last, and what an administrator has to do."""
        hospital = self._hospital
        left = hospital.left()
        today = datetime.now(UTC).date()
        yesterday = (today - timedelta(days=1)).isoformat()
        return self._show(
            request,
            "now",
            can_live=True,
            status_now=hospital.status(),
            waiting=[view for view in hospital.studies() if view.waits],
            budgets=hospital.budgets(),
            checks=[item for item in hospital.checks() if item.level != "ok"],
            days=[
                (say("Today"), today.isoformat(), left),
                (say("Yesterday"), yesterday, left),
                *((say("Without a date"), day, left) for day, _ in left if not day),
            ],
            counted=_counted,
            report=hospital.records.report(),
        )

    def studies(self, request: Request) -> Response:
        """Every study that asked."""
        views = self._hospital.studies()
        return self._show(request, "studies", views=views, refused=self._hospital.refused_names())

    def study(self, request: Request) -> Response:
        """One study: what it would do, and the forms to decide."""
        view = self._hospital.study(request.path_params["digest"])
        if view is None:
            raise HTTPException(404)
        return self._show(
            request,
            "study",
            view=view,
            budgets=[one for one in self._hospital.budgets() if one.dataset == view.dataset],
            warning=near_twins.WARNING,
            lost=lost_memory.warning(self._hospital.site.state),
            reader=say(_READERS.get(view.protection, "not known")),
            shown=near_twins.fingerprint(view.twins),
        )

    def decide(self, request: Request) -> Response:
        """Approve or refuse, as the command line does, in the name of this account or of who signed in."""
        site, form, digest = self._hospital.site, request.state.form, request.path_params["digest"]
        if self._hospital.study(digest) is None:
            raise HTTPException(404)
        by = self._console.person
        if by is None:
            raise PolicyRefused("nobody is signed in, or not any more; nothing was changed", remedy=_SIGN_IN)
        if form.get("as") != by.digest:
            raise PolicyRefused(
                "somebody else has signed in since this page was loaded; nothing was changed",
                remedy="load it again",
            )
        if form.get("decision") == "approve":
            shown = near_twins.fingerprint(near_twins.noted(site.state, digest))
            # A twin that was noted after the page was shown was not read by anybody.
            despite = form.get("twins") == "yes" and form.get("shown") == shown
            item = persons.approve(site, digest, by, despite_twins=despite)
            if item.state == "held":
                done = "first-signed-in" if by.subject else "first"
            else:
                done = "approved" if persons.record(site, persons.APPROVED_LATER) else "approved-later"
        elif form.get("decision") == "refuse":
            persons.refuse(site, digest, by)
            done = "refused" if persons.record(site, persons.REFUSED_LATER) else "refused-later"
        else:
            raise HTTPException(400)
        self._hospital.records.changed()
        return RedirectResponse(f"{_base(request)}/studies/{digest}?done={done}", status_code=303)

    def budgets(self, request: Request) -> Response:
        """What is left."""
        budgets, records = self._hospital.budgets(), self._hospital.records
        return self._show(request, "budgets", budgets=budgets, why=records.why)

    def left(self, request: Request) -> Response:
        """What left, by day."""
        today = datetime.now(UTC).date()
        yesterday = today - timedelta(days=1)
        names = {today.isoformat(): say("Today"), yesterday.isoformat(): say("Yesterday")}
        days = {day: list[Departure]() for day in names} | dict(self._hospital.left())
        newest = sorted(days.items(), key=lambda pair: pair[0], reverse=True)  # without a date: last
        return self._show(request, "left", days=newest, names=names)

    def decisions(self, request: Request) -> Response:
        """The decision log, the newest entry first."""
        report = self._hospital.records.report()
        logs = [log for log in report.decisions if log.site == self._hospital.name] if report else []
        return self._show(request, "decisions", logs=logs, in_words=in_words, place=place)

    def setup(self, request: Request) -> Response:
        """Keys, certificates, roster and policy."""
        text, problem = self._hospital.policy()
        return self._show(request, "setup", checks=self._hospital.checks(), text=text, problem=problem)

    # --- who signs in ------------------------------------------------------------------------------------

    @property
    def _sign_in(self) -> SignIn:
        if self._console.sign_in is None:
            raise HTTPException(404)
        return self._console.sign_in

    def sign_in(self, request: Request) -> Response:
        """Begin; the person comes back to the page that this form was on."""
        then = request.state.form.get("then", "")
        self._sign_in.begin(then if _THEN.fullmatch(then) else "/")
        return RedirectResponse(f"{_base(request)}{_WAIT}", status_code=303)

    def wait_for_sign_in(self, request: Request) -> Response:
        """The way to the identity provider, until its answer has landed; then back to where it began."""
        step = self._sign_in.go_on()
        if not step.signed_in:
            return self._show(request, "leaving", address=step.address)
        return RedirectResponse(f"{_base(request)}{step.address}", status_code=303)

    def sign_out(self, request: Request) -> Response:
        """Nobody is signed in here; at the identity provider, they may still be."""
        self._sign_in.end()
        return RedirectResponse(f"{_base(request)}/", status_code=303)

    # --- study centre ------------------------------------------------------------------------------------

    @property
    def _centre(self) -> Centre:
        if self._console.centre is None:
            raise HTTPException(404)
        return self._console.centre

    def centre(self, request: Request) -> Response:
        """Every run."""
        return self._show(request, "centre", can_live=True, runs=self._centre.runs())

    def hospitals(self, request: Request) -> Response:
        """Every member, with what the aggregator knows of it."""
        return self._show(request, "hospitals", can_live=True, members=self._centre.members())

    def run(self, request: Request) -> Response:
        """One run, round by round."""
        run = self._centre.run(request.path_params["address"])
        if run is None:
            raise HTTPException(404)
        return self._show(request, "run", can_live=True, run=run)

    # --- officer -----------------------------------------------------------------------------------------

    @property
    def _records(self) -> Records:
        if self._console.records is None:
            raise HTTPException(404)
        return self._console.records

    def records(self, request: Request) -> Response:
        """The newest check, its exports, and the button to check again."""
        report = self._records.report()
        return self._show(request, "records", report=report, why=self._records.why, can_print=bool(browser()))

    def verify(self, request: Request) -> Response:
        """Check everything again, now."""
        self._records.report(anew=True)
        return RedirectResponse(f"{_base(request)}/records", status_code=303)

    def export(self, kind: str) -> Callable[[Request], Response]:
        """The report as a file of one kind."""

        def respond(_request: Request) -> Response:
            report, page = self._records.report(), self._records.page()
            if report is None or page is None:  # there is nothing to report on yet
                raise HTTPException(404)
            if kind == "html":
                return HTMLResponse(page, headers={"Content-Security-Policy": _REPORT_POLICY})
            data: bytes | None = to_json(report).encode()
            if kind == "pdf":
                program = browser()
                data = print_to_pdf(page, program) if program else None
            if data is None:
                raise HTTPException(404)
            named = {"Content-Disposition": f'attachment; filename="audit-report.{kind}"'}
            return Response(data, media_type=f"application/{kind}", headers=named)

        return respond

    # --- what went wrong ---------------------------------------------------------------------------------

    def http_error(self, request: Request, error: HTTPException) -> Response:
        """A page that does not exist, or a form without a decision."""
        text = say("There is no such page." if error.status_code == 404 else "This cannot be done here.")
        return self._show(request, "problem", status=error.status_code, text=text, error=None)

    def failed(self, request: Request, error: SecfedError) -> Response:
        """What happened, and the remedy."""
        return self._show(request, "problem", status=409, text="", error=error)


def _counted(left: list[tuple[str, list[Any]]], day: str) -> int:
    return sum(len(many) for one, many in left if one == day)


def _base(request: Request) -> str:
    """The path that the guard has put before every page; empty without a guard."""
    return str(request.scope.get("root_path", ""))


def _style(_request: Request) -> Response:
    text = resources.files("secfed.console").joinpath("console.css").read_text("utf-8")
    return Response(text, media_type="text/css")


_ENVIRONMENT: Final = Environment(
    loader=PackageLoader("secfed.console", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=lambda value: phrases.printable(value) if type(value) is str else value,
)
_ENVIRONMENT.filters.update(
    known_or_own=known_or_own,
    up=phrases.number_up,
    down=phrases.number_down,
    moment=phrases.moment,
    delta=phrases.delta,
)
_ENVIRONMENT.globals.update(
    phrases=phrases,
    say=say,
    recognised=recognised,
    known_or_own=known_or_own,
    again=again,
    number=number,
    spoken=spoken,
    in_line=in_line,
    languages=LANGUAGES,
)
