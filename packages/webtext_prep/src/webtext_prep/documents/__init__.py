"""What flows through the stages, and how it is stored: documents, URL lists, formats, compression, inputs."""
