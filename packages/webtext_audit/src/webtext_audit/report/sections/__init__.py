"""The sections of a report: each turns figures into markup, or says nothing where there are none."""
