"""Pages in files: WARC archives in and out, damaged ones too, and saved HTML files."""
