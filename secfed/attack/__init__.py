"""``secfed attack``: a malicious aggregator, and hospitals that help it, against real sessions of a site."""
