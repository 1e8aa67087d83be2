"""MinHash fingerprints and the arithmetic of banding, apart from the stage that uses them."""
