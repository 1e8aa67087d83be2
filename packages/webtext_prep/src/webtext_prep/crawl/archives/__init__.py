"""Pages that others have: web archives on the net, WARC files in and out, damaged ones too, and saved HTML files."""
