"""The formats of models, one file each, found by class: add or remove a file, and the format is there or gone."""
