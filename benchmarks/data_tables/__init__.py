"""The tables of `data.py`, one module for each stage."""
