"""`python -m babeltune.cli`."""

from babeltune.cli import main

main()
