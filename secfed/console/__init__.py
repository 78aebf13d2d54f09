"""Pages for people, on this machine only: approve studies, see budgets and what left, verify records.

guard.py     who may see a page, and which form may change something
hospital.py, centre.py, records.py    what the pages show, read from folders
pages.py     the pages themselves;  serve.py    the server of ``secfed console``
"""
