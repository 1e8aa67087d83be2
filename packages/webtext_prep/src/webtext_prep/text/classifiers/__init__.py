"""Classifiers of documents: a linear one of our own, learned by `train-filter`, and fastText's files."""
