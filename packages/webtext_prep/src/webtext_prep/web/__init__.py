"""The network side of `webtext download`: requests, crawling order, robots.txt, addresses, the journal."""
