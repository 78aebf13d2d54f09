"""From the options of a command to an engine that is started."""

from __future__ import annotations

import os

from secfed.algorithms.framework.base import Algorithm
from secfed.engine.gpus import Gpus, bounded, here, share
from secfed.engine.interface import Engine, Inline
from secfed.engine.options import EngineOptions
from secfed.engine.wire import Job
from secfed.study.study import Study


def open_engine(
    options: EngineOptions, study: Study, algorithm: Algorithm, *, study_id: str, sites: int
) -> Engine:
    """The engine, started.

    Args:
        algorithm: the study's, without noise in sums.

    Raises:
        ConfigError: Ray is not installed, or its cluster cannot be reached.
    """
    if options.name == "inline":
        return Inline(algorithm, study.seed)
    job = Job(site="", settings="", study=study_id, simulated=True, only_values=True)
    workers = min(options.workers or os.cpu_count() or 1, sites)
    if options.name == "processes":
        from secfed.engine.processes import Processes

        names = here()
        gpus = Gpus(names, share(options, study, algorithm, len(names)))
        if gpus.workers is not None:
            workers = bounded(workers, options.workers, gpus.workers, "--gpus-per-site: this machine")
        return Processes(study, algorithm, job, workers, options.site_deadline_s, gpus)
    from secfed.engine.on_ray import Ray

    return Ray(study, algorithm, job, workers, options)
