"""The privacy report as HTML, PDF and figures."""
