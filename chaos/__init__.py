"""Trials with real processes: inject faults, then check the clients' results against the
guarantees.
"""
