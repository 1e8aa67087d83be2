"""URLs: their parts and keys (`urls`), and one name for each host (`hosts`)."""
