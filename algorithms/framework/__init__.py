"""What an algorithm is: its interface, setting and shared state.

Imports dp and what lies below.
"""
