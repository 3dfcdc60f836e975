"""Measurements: one file per question or per tool that asks it.

Each prints numbers, ratios and the machine. See produce_fetch.py.
"""
