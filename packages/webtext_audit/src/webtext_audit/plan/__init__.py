"""What a pipeline will take of time, memory and disk, and leave, from a sample of the input that runs through it."""
