"""The command line: one small module per command, and one place that turns errors into exit codes."""

from secfed.cli.app import main

__all__ = ["main"]
