"""A study asks, a hospital decides.

Imports policy, enrolment and transport.
"""
