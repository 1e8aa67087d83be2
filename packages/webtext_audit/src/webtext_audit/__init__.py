"""What reads finished outputs: `webtext why`, `trace`, `report`, `inspect`, `takedown`, `plan`, `export`."""
