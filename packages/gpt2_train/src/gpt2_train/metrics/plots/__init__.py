"""Charts of training runs: `runs` reads what they recorded, `panels` decides what is drawn, the others draw it."""
