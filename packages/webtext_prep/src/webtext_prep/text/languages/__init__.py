"""Language detectors: one module for each, found by looking into this folder (`--language-detector`)."""
