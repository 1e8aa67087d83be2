"""Finding one document among millions: by its URL, by a passage of its text, by its place in token files."""
