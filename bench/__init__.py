"""Benchmarks, and the tools that run them. Each benchmark prints figures, ratios and the machine.
Start with produce_fetch.py.
"""
