"""The program behind the script driver: plays a scenario file as an agent. Standard library only, so that it starts fast."""

import os
import sys

# Started as a file with -I, so its own modules are not on the search path; appended last, so that nothing is shadowed.
if not __package__:
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    __package__ = "program"

from .session import main

if __name__ == "__main__":
    sys.exit(main(once="--task" in sys.argv[1:]))
