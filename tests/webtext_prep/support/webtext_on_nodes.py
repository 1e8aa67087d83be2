"""`webtext` with the engine `nodes`, on which what a journal gains is kept at once."""

import sys
from pathlib import Path

from webtext_prep import cli
from webtext_prep.crawl.state import database_writer, page_cache
from webtext_prep.running import engines

if __name__ == "__main__":
    engines.__path__.append(str(Path(__file__).parent / "added_engines"))
    page_cache.SECONDS, database_writer.SECONDS = 0.0, 0.05
    sys.exit(cli.main())
