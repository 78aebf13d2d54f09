"""Signed, hash-chained logs: transcripts, decision logs, rosters.

Imports wire and what lies below.
"""
