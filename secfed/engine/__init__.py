"""Where the local work of site programs runs: in this process, or in others that keep no secret of the study.

Imports what a site's program is made of; no transport and no protocol.
"""
