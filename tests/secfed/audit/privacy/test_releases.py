"""What the report says of a study's settings."""

from __future__ import annotations

import pytest

from secfed.audit.privacy.releases import in_effect
from secfed.study.study import Study

_STUDY = """
study = {{ name = "a", rounds = 1 }}
algorithm = {{ name = "{algorithm}", weighting = "equal" }}
model = {{ name = "mlp" }}
data = {{ name = "breast-cancer", standardize = "public" }}
privacy = {{ {privacy}, epsilon = 1.0, delta = 1e-5, clip_norm = 1.0 }}
"""


@pytest.mark.parametrize(
    ("algorithm", "privacy", "noise"),
    [
        ("fedavg", 'unit = "record"', {"noise": "site"}),
        ("fedsgd", 'unit = "record", noise = "sum"', {"noise": "sum", "distribution": "skellam"}),
        (
            "fedavg",
            'unit = "site", distribution = "discrete-gaussian"',
            {"distribution": "discrete-gaussian"},
        ),
    ],
)
def test_a_distribution_is_told_only_where_it_is_drawn(
    algorithm: str, privacy: str, noise: dict[str, str]
) -> None:
    study = Study.parse(_STUDY.format(algorithm=algorithm, privacy=privacy))
    shown = in_effect(study.tables()["privacy"])
    assert {key: value for key, value in shown.items() if key in ("noise", "distribution")} == noise
    assert "metrics_share" not in shown
    assert shown["epsilon"] == 1.0
    assert None not in shown.values()
