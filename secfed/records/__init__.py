"""Signed, hash-chained logs: transcripts, decision logs, rosters."""
