"""What an index of token files is made of: suffixes in order, and the URL of each document."""
