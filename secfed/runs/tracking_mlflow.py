"""A run in MLflow: one experiment per study, one run per run.

Written against ``MlflowClient`` (https://mlflow.org/docs/latest/api_reference/python_api/mlflow.client.html),
which reads nothing of this machine into a run: no user, no source file, no commit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from secfed.errors import missing_package
from secfed.runs.tracking import Point, TrackedRun

_RUN: Final = "secfed.run"  # the tag that holds the run's identity
_ONLY_WHAT_IS_WRITTEN: Final = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # stdout is for results
}
_UNLESS_SET: Final = {
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # seconds; its own values ask a dead server for many minutes
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # the next round tries again
}


class MlflowWriter:
    """Writes to the tracking server, folder or database that ``uri`` names.

    Raises:
        ConfigError: MLflow is not installed.
    """

    def __init__(self, uri: str, client: Callable[[str], Any] | None = None) -> None:
        self._uri, self._open = uri, client or _opener()
        self._client: Any = None
        self._run_id = ""

    def begin(self, run: TrackedRun, *, resumed: bool) -> set[tuple[str, int]]:
        """Find the run of an earlier start, or make one.

        A simulation that replaces a finished one has the same identity, and is a run of its own.
        """
        client = self._client = self._open(self._uri)
        known = client.get_experiment_by_name(run.study)
        experiment = client.create_experiment(run.study) if known is None else known.experiment_id
        runs = client.search_runs(
            [experiment],
            filter_string=f"tags.`{_RUN}` = '{run.identity}'",
            max_results=1,
            order_by=["attributes.start_time DESC"],
        )
        if runs and resumed:
            self._run_id = runs[0].info.run_id
            return {
                (metric.key, metric.step)
                for key in runs[0].data.metrics
                for metric in client.get_metric_history(self._run_id, key)
            }
        if (
            runs and runs[0].info.status == "RUNNING"
        ):  # of a process that was killed, and nothing goes on with it
            client.set_terminated(runs[0].info.run_id, "KILLED")
        tags = {_RUN: run.identity} | {f"secfed.{name}": text for name, text in run.facts().items()}
        self._run_id = client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
        return set()

    def write(self, point: Point) -> None:
        """Log it; a second time the same changes nothing, because its time is the same."""
        # Not log_batch: a value that a store refuses would take those beside it along.
        for name, value in point.values.items():
            self._client.log_metric(self._run_id, name, value, int(point.time_s * 1000), point.step)

    def end(self, facts: Mapping[str, str]) -> None:
        """Tag it with the facts, and end it."""
        for name, text in facts.items():
            self._client.set_tag(self._run_id, f"secfed.{name}", text)
        self._client.set_terminated(self._run_id, "FINISHED")

    def close(self) -> None:
        """Nothing: a run that can be resumed stays open in MLflow."""


def _opener() -> Callable[[str], Any]:
    os.environ.update(_ONLY_WHAT_IS_WRITTEN)  # read when MLflow is imported
    for name, value in _UNLESS_SET.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise missing_package("--track mlflow", "mlflow") from None
    return lambda uri: MlflowClient(tracking_uri=uri)
