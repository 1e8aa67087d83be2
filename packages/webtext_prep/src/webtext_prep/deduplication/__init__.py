"""The phases of `webtext dedup`: which documents may be alike, and which of them go."""
