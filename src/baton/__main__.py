"""`python -m baton`"""

from baton.cli.main import run

run()
