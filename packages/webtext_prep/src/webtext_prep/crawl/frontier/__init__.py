"""What a crawl fetches next: the crawler, its queues of hosts, robots.txt, politeness, redirects."""
