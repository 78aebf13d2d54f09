"""The task of a study: ``algorithm.task``, if data set and ``[privacy]`` fit it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from secfed.algorithms.framework.setting import Setting
from secfed.algorithms.framework.targets import TaskName, targets_of
from secfed.algorithms.tasks.base import Task
from secfed.algorithms.tasks.classification import Classification
from secfed.algorithms.tasks.multi_label import MultiLabel
from secfed.algorithms.tasks.regression import Regression
from secfed.algorithms.tasks.segmentation import Segmentation
from secfed.algorithms.tasks.survival import Survival
from secfed.errors import ConfigError

_TASKS: Final[Mapping[TaskName, type[Task]]] = {
    "classification": Classification,
    "regression": Regression,
    "multi-label": MultiLabel,
    "survival": Survival,
    "segmentation": Segmentation,
}


def task_of(setting: Setting, name: TaskName) -> Task:
    """The task of this name; a ConfigError says what does not fit it."""
    targets = targets_of(setting.labelled())
    if targets.task != name:
        raise ConfigError(
            f'algorithm.task: the records of {setting.study.data.name} are for "{targets.task}", '
            f'not for "{name}"',
            remedy=f'set algorithm.task = "{targets.task}"; for others, say so in [data] or '
            "your own data set",
        )
    task = _TASKS[name](targets)
    privacy = setting.study.privacy
    if privacy is not None and privacy.metrics == "private" and task.noisy_l2 is None:
        # A record adds to many bins, or voxels, at once: noise that hides it would hide the metric, too.
        raise ConfigError(
            f'privacy.metrics: "private" has no noisy form for the metrics of algorithm.task = "{name}"',
            remedy='set privacy.metrics = "withheld", or "unprotected" where metrics may leave without noise',
        )
    return task
