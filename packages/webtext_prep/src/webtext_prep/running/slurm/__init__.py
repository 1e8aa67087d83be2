"""What the engine of that name is made of: Slurm's commands, an array's files, and what a job does on its node."""
