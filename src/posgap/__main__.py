"""`python -m posgap`."""

from posgap.cli.main import main

main()
