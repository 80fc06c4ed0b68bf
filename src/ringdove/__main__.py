"""`python -m ringdove`: the command line."""

from __future__ import annotations

from ringdove.cli import main

if __name__ == "__main__":
    main()
