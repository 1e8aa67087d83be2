"""From any finished output to what it was made from, whether that is still there or not."""

from webtext_prep.lineage.steps import Step, all_steps, trace, trace_all

__all__ = ["Step", "all_steps", "trace", "trace_all"]
