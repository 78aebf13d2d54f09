"""A consortium on the disk, an aggregator in this process, and agents in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from secfed.config.cohort_rules import threshold
from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.offered import plan_digest
from secfed.deploy.agent.agent import Agent
from secfed.deploy.agent.control import make_state_folder
from secfed.deploy.agent.status import STATUS_FILE, StatusBoard, read_status
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.transport.dispatch import StageDispatcher
from secfed.deploy.transport.frame_sizes import FrameCaps
from secfed.deploy.transport.grpc.server import LinkServer
from secfed.deploy.transport.limits import ClientLimits
from secfed.deploy.transport.study_server import Offer
from secfed.server.coordinator import Coordinator, RoundOutcome
from secfed.server.round import Rules
from secfed.site.terms import Terms
from secfed.storage import private_files
from secfed.study.limits import study_id
from secfed.study.study import Study
from tests.deploy import central_case
from tests.deploy.centre_case import found_consortium
from tests.deploy.link_case import Watched

NAMES = ("hospital-1", "hospital-2", "hospital-3")
QUICK = ClientLimits(backoff_s=0.05, backoff_cap_s=0.2)
TOML = central_case.TOML.format(rounds=1, sites=3, protection="masked").replace(
    '"mlp"\nhidden = [4]', '"logistic-regression"'
)
POLICY = """
approve = "{approve}"
[studies]
names = ["tiny"]
[privacy]
require = false
[algorithms.fedavg]
local_epochs = {{ max = 5 }}
batch_size = {{ max = 256 }}
learning_rate = {{ max = 1.0 }}
optimizer = "any"
momentum = "any"
weight_decay = "any"
weighting = "any"
weight_cap = "any"
[models.logistic-regression]
[[data]]
name = "wards"
source = "breast-cancer"
options = "any"
"""


# A private study, and a policy with a budget for it.
PRIVATE = (
    TOML.replace("learning_rate = 0.1", 'learning_rate = 0.1\nweighting = "equal"').replace(
        "test_fraction = 0.25", "test_fraction = 0.25\nstandardize = false"
    )
    + '[privacy]\nunit = "record"\nepsilon = 8.0\ndelta = 1e-4\naccountant = "rdp"\nclip_quantile = 0.5\n'
)
BUDGETED = POLICY.replace("require = false", "max_epsilon = 8.0\nmax_delta = 1e-4") + (
    "[[data.budget]]\nepsilon = 20.0\ndelta = 1e-4\n"
)


def status(folder: SiteFolder) -> dict[str, Any]:
    """What the agent of this folder last wrote."""
    return read_status(folder.state / STATUS_FILE) or {}


def permit(folder: SiteFolder, approve: str = "automatic", policy: str = POLICY) -> None:
    folder.policy_path.write_text(policy.format(approve=approve), encoding="utf-8")
    make_state_folder(folder.state)


def asked(folder: SiteFolder, name: str, digest: bytes) -> None:
    """A study asked and waits for a person, with what the agent keeps of it."""
    Approvals(folder.approvals_path).hold(name, digest, utc_now())
    offers = folder.state / "offers"
    offers.mkdir(parents=True, exist_ok=True)
    content = private_files.to_json({"tables": Study.parse(TOML).tables(), "sites": NAMES})
    (offers / f"{digest.hex()}.json").write_bytes(content)


class Agents:
    """Agents of hospitals, each in a thread of this process."""

    def __init__(self) -> None:
        self.agents: dict[str, Agent] = {}
        self.boards: dict[str, StatusBoard] = {}
        self.threads: dict[str, threading.Thread] = {}
        self.errors: list[BaseException] = []

    def serve(self, folder: SiteFolder, **options: Any) -> Agent:
        """Start the agent of a folder."""
        name = folder.name
        board = self.boards[name] = StatusBoard(folder.state / STATUS_FILE, name)
        agent = self.agents[name] = Agent(
            folder, passphrase=None, board=board, **{"limits": QUICK, **options}
        )
        self.threads[name] = threading.Thread(target=self._run, args=(agent.run,), daemon=True)
        self.threads[name].start()
        return agent

    def _run(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.errors.append(error)

    def ended(self, *names: str) -> None:
        """Wait until these, or all, have come to their end."""
        for name in names or self.threads:
            self.threads[name].join(60)
            assert not self.threads[name].is_alive()

    def close(self) -> None:
        for agent in self.agents.values():
            agent.stop()
        self.ended()


class Centre(Agents):
    """The study centre's half; hospitals are folders until they are started."""

    def __init__(
        self, folder: Path, toml: str = TOML, *, policy: str = POLICY, names: tuple[str, ...] = NAMES
    ) -> None:
        super().__init__()
        self.names = names
        self.consortium, self.folders = found_consortium(folder, names)
        for site in self.folders.values():
            permit(site, policy=policy)
        self.toml, self.study = toml, Study.parse(toml)
        self.roster = roster = self.consortium.roster()
        self.terms = Terms.of(self.study, roster, names[0])
        caps = FrameCaps.of(self.terms.algorithm, self.study.rounds, len(names), self.terms.protection)
        tls = self.consortium.aggregator_tls(None, utc_now())
        plan = plan_digest(self.study, self.terms.algorithm, self.terms.sites, roster)
        offer = Offer(study_id(self.study), toml.encode(), caps.answer_bytes, roster.digest, plan)
        address = f"localhost:{self.consortium.facts.port}"
        self.server = LinkServer(address, tls, roster.sites, offer)
        self.server.start()
        self.watched = Watched()
        self.link = StageDispatcher(self.server, lambda _stage: 120.0, watcher=self.watched)

    def start(
        self, name: str, *, once: bool = True, poll_s: float = 0.1, simulated_randomness: bool = False
    ) -> Agent:
        return self.serve(
            self.folders[name], poll_s=poll_s, once=once, simulated_randomness=simulated_randomness
        )

    def run(self) -> list[RoundOutcome]:
        """The whole study, then the farewell."""
        assert len(self.link.wait_for(self.names, len(self.names), 60.0)) == len(self.names)
        self.log = _Ignored()
        rules = Rules(
            study=study_id(self.study),
            identity=self.consortium.aggregator_identity(None),
            roster=self.roster,
            protection=self.terms.protection,
            threshold=partial(threshold, self.study.protection, len(self.names)),
            min_cohort=self.study.protection.min_cohort,
        )
        run = Coordinator(self.terms.algorithm, self.study.rounds, rules, self.link.ask, self.log)
        outcomes: list[RoundOutcome] = []
        run.run(outcomes.append)
        self.model = run.server.model()
        self.server.finish()
        return outcomes

    def complete(self) -> list[RoundOutcome]:
        """The whole study, after which every agent has ended well."""
        outcomes = self.run()
        self.ended()  # --once: the study is over
        assert not self.errors
        return outcomes

    def declined(self, name: str = NAMES[0]) -> str:
        """Why this hospital does not serve the study, as the study centre knows it."""
        return self.server.presence()[name].declined or ""

    def close(self) -> None:
        super().close()
        self.server.stop()


class _Ignored:
    def append(self, kind: str, body: object) -> None:
        """Nothing is kept."""
