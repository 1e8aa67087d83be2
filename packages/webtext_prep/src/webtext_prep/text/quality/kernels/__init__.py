"""What the rules compute in machine code: imported by a rule when it is made, because numba takes a second."""
