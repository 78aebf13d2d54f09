"""What an operator runs between machines: keys, policy, enrolment, transport, admission, the two processes.

Imports secfed.simulation and what lies below it.
"""
