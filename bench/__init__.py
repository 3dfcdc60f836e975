"""Measurements: one file for each benchmark, and for each tool that runs it.

Each prints numbers, ratios and the machine. See produce_fetch.py.
"""
