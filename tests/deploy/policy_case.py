"""A policy, a study that it permits, and what is asked of both."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from secfed.deploy.policy.policy import Policy
from secfed.study.study import Study

NIGHT = datetime(2026, 3, 2, 23, 0, tzinfo=UTC)
NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)

POLICY = """
approve = "automatic"
timezone = "UTC"

[studies]
names = ["heart-*"]
max_rounds = 100

[protection]
names = ["masked"]
min_cohort = 3
min_threshold = 3

[privacy]
max_epsilon = 3.0
max_delta = 1e-5

[algorithms.fedavg]
local_epochs = { max = 5 }
learning_rate = { min = 0.01, max = 1.0 }
optimizer = ["sgd"]

[models.mlp]
hidden = { max = 64 }

[[data]]
name = "heart"
source = "csv"
path = "/srv/secfed/secret-place/heart-2026.csv"
study_path = "heart.csv"

[data.options]
label_column = ["num"]
label_above = [0]
feature_columns = ["age", "chol"]
site_column = ["site"]

[[data.budget]]
epsilon = 10.0
delta = 1e-5
period_days = 365

[[data.budget]]
epsilon = 30.0
delta = 1e-5

[[hours]]
start = "20:00"
end = "06:00"
"""

STUDY = """
study = { name = "heart-1", rounds = 40 }
algorithm = { name = "fedavg", local_epochs = 5, learning_rate = 0.2 }
model = { name = "mlp", hidden = [32, 16] }
protection = { name = "masked" }
privacy = { unit = "record", epsilon = 3.0, delta = 1e-5 }

[data]
name = "csv"
path = "heart.csv"
site_column = "site"
sites = ["charite", "hcuge", "ukhd"]
label_column = "num"
label_above = 0
feature_columns = ["age"]
"""


def policy(folder: Path, text: str = POLICY) -> Policy:
    path = folder / "policy.toml"
    path.write_text(text, encoding="utf-8")
    return Policy.load(path)


def keys(found: Policy, asked: Study, now: datetime = NIGHT, **more: Any) -> list[str]:
    return [item.key for item in found.check(asked, now, **more)]
