"""Differential privacy: units, mechanisms, noise, accountants, budgets and the ledger.

Read in this order: :mod:`~secfed.dp.accounting.unit` (what is protected), :mod:`~secfed.dp.accounting.events`
(what was released), :mod:`~secfed.dp.accounting.interface` (what that costs),
:mod:`~secfed.dp.training.private_loop` (record level), :mod:`~secfed.dp.mechanisms.noise` (site level),
:mod:`~secfed.dp.ledger.ledger` (who has paid for what).
"""
