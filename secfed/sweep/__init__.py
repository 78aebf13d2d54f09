"""``secfed sweep``: one study, many settings and seeds, each run a folder of its own.

``file`` reads the sweep file, ``plan`` turns it into validated runs, ``engine`` carries them out through a
runner (``processes``: one child process per run, which is ``child``), ``store`` is the folder on disk,
``results`` the rows and their statistics, ``report`` and ``figure`` what people look at.
"""
