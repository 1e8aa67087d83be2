"""Models of other programs, in and out: every format is read into, and written from, `ModelWeights`.

`formats/` has one file for each format of others, found by its class, and in its `__init__` what they share; `hub`
fetches models by name, `names` and `pickles` are for what others call and store. Nothing here knows of training.
"""
