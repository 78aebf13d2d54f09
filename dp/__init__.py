"""Differential privacy: units, mechanisms, noise, accountants, budgets and the ledger.

Read in this order: :mod:`~secfed.dp.unit` (what is protected), :mod:`~secfed.dp.events` (what was
released), :mod:`~secfed.dp.accountant` (what that costs), :mod:`~secfed.dp.training` (record level),
:mod:`~secfed.dp.noise` (site level), :mod:`~secfed.dp.ledger` (who has paid for what).
"""
