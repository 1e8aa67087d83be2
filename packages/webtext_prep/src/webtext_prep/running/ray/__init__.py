"""What engine ray is made of: reaching a cluster, and the tasks there."""
