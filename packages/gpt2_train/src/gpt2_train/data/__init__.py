"""From token files to training samples: splits by document, shuffled sample index, blending. Works without torch.

In the order of the work: `corpus` (token files and their splits), `index` (which tokens make up each sample, and that
on disk), `order` (documents by what they hold), `streams` (endless samples of one split, and several streams in
proportion).
"""
