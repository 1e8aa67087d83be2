"""What a crawl knows: its database, snapshots of earlier crawls, the page cache."""
