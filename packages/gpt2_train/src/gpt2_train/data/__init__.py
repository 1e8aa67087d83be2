"""From token files to training batches: splits by document, shuffled sample index, blending, reading ahead.

In the order of the work: `corpus` (token files and their splits), `index` (which tokens make up each sample, and that
on disk), `streams` (endless samples of one split), `blending` (several streams in proportion), `batches` (each
process's rows, one step ahead), `micro_batches` (tensors on the device). All but the last and `shared_cache`, by which
several processes share one index, work without torch.
"""
