"""`python -m posgap`."""

from posgap.cli import main

main()
