"""Trials of real processes: kill them, restart them, and hold what clients saw against what
was promised.
"""
