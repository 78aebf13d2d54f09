"""Consortium, members, rosters and the site folder."""
