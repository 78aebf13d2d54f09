"""A policy and a study that it permits."""

from __future__ import annotations

import pytest

from secfed.deploy.policy.policy import Policy
from secfed.study.study import Study
from tests.deploy.policy_case import STUDY, policy


@pytest.fixture(scope="module")
def study() -> Study:
    return Study.parse(STUDY, own_code=())


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return policy(tmp_path_factory.mktemp("policy"))
