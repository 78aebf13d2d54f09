"""Messages to the people of one party, by webhook and e-mail: what has to be done, and by when.

Nothing here knows the link between hospitals and aggregator, and nothing of it goes over that link.
"""
