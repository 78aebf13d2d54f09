"""Pages for people, on this machine only: approve studies, see budgets and what left, verify records.

guard.py     who may see a page, and which form may change something
hospital.py, centre.py, records.py    what the pages show, read from folders
sign_in.py, provider.py, id_token.py  who signed in with OpenID Connect, where the hospital wants that
pages.py     the pages themselves;  serve.py    the server of ``secfed console``
"""
