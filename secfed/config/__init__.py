"""Schema helpers, user plug-ins and sections that every layer reads. Imports nothing above storage."""
