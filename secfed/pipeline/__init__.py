"""What happens to a site's contribution on its way into a sum, and to the total on its way out.

:mod:`secfed.pipeline.stage` says what a stage is, :mod:`secfed.pipeline.order` which ones there are and in
which order. Imports study and what lies below.
"""
