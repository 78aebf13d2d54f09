"""What a run leaves in its folder: report, figures, model. Imports algorithms and what lies below."""
