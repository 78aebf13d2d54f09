"""Volumes: DICOM series and NIfTI files."""
