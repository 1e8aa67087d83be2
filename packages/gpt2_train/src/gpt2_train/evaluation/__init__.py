"""Measuring a model: `tasks/` has one file for each task, `command` runs one, `lm_harness` is EleutherAI's."""
