"""What reads finished outputs: `webtext why`, `report`, `inspect`, `takedown`, `plan`, `export`."""
