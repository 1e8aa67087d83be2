"""Optimizers (`adamw`, `muon`), the learning rate of each step (`schedule`), gradient norm and loss scale."""
