"""Optimizers and the mean of weights (`adamw`, `muon`), the rate of a step (`schedule`), gradient norm, loss scale."""
