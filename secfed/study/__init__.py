"""The study file, and what it builds: algorithm, data and model. Imports runs and what lies below."""
