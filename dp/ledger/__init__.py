"""The privacy ledger: what was spent, signed and chained. Imports accounting and secfed.records."""
