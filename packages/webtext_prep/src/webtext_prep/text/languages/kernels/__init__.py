"""What detectors compute in machine code: imported by a detector when it is made, because numba takes a second."""
