"""Models of other programs, in and out: every format is read into, and written from, `ModelWeights`.

`formats/` has one file for each format, found by its class; `weights.py` is what they have in common. Nothing here
knows of training.
"""
