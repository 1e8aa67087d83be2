"""Did a change of the data make the corpus better? Small models, trained in pairs, and an interval.

`corpora` makes a corpus for each value of a pipeline's setting. `gpt2 ablate` compares token files, in the order of the
work: `settings`; `arms`, the token files; `held_out`, what they are measured on; `plans`, which runs of how many steps;
`runs`, which trains and scores them; `statistics`; `verdict`, from losses to intervals; `words`, which says it;
`comparison`, all of this; `command`.
"""
