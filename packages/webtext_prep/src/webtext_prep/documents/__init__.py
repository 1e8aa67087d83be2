"""What flows through the stages, and how it lies on disk: documents, URL lists, formats, compression, inputs."""
