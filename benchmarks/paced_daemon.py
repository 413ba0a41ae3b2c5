"""`python -m benchmarks.paced_daemon serve …`: as `python -m gateway serve …`; the echo agent is benchmarks/paced_agent.py."""

from __future__ import annotations

from pathlib import Path

from drivers.echo import driver
from gateway.cli.main import main

if __name__ == "__main__":
    driver.PROGRAM = Path(__file__).with_name("paced_agent.py")
    main()
