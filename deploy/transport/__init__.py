"""Messages, limits and progress, for any carrier.

Imports enrolment and what lies below.
"""
