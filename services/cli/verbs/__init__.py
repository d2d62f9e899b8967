"""One file per verb of the command line: light to import, it loads what it needs in `run`."""
