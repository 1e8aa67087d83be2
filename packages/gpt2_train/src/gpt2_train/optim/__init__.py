"""Optimizers and the mean of weights (`adamw`, `muon`), gradient norm and loss scale (`gradients`)."""
