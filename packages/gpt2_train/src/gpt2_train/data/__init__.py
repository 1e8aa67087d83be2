"""Training batches from token files: splits by document, shuffled sample index, blending, reading ahead.

In the order of the work: `corpus` (token files and their splits), `index` (which tokens make up each sample, and that
on disk), `order` (documents by what they hold), `streams` (endless samples of one split, and several streams in
proportion), `batches` (each process's rows, one step ahead, and tensors of them on the device). All but the last work
without torch.
"""
