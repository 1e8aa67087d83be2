"""What the engines for clusters are made of: Ray and Slurm."""
