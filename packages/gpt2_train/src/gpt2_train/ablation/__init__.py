"""`gpt2 ablate`: did a change of the data make the corpus better? Small models, trained in pairs, and an interval.

In the order of the work: `settings`; `arms`, the token files that are compared; `held_out`, what they are measured on;
`plan`, which runs of how many steps; `runs`, which trains and scores them; `statistics`; `verdict`, from losses to
intervals; `words`, which says it; `command`.
"""
