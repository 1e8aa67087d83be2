"""What a crawl fetches next: queues of hosts, robots.txt, politeness, redirects, rounds, and the loop over a list."""
