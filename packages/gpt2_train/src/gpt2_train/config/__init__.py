"""Settings and checks that need no torch: `settings` (flags, TOML keys, the model's shape), `layout`, `errors`."""
