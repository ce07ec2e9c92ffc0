"""``python -m rlightning`` is the command ``rlightning``."""

from rlightning.commands.cli import main

if __name__ == "__main__":
    main()
