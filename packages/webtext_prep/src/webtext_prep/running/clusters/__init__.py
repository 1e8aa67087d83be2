"""What the engine for clusters is made of, which imports Ray."""
