"""For all tests: property tests try the same examples on every run, however slow the machine."""

import sys

import hypothesis

# megatron-core is installed on Linux only.
collect_ignore = [] if sys.platform == "linux" else ["indexed_tokens/test_megatron.py"]

hypothesis.settings.register_profile(
    "same every time",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("same every time")
