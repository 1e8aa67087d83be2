"""Serves the documentation of Python on loopback. The work is in webtext_run.documentation_site."""

from webtext_run.documentation_site import main

if __name__ == "__main__":
    main()
