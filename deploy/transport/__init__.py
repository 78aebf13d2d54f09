"""Messages, limits, progress and the steps of a round, for any carrier."""
