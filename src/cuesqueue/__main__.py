"""`python -m cuesqueue` is the program `cuesqueue`."""

from queue_source.commands.main import run

if __name__ == "__main__":
    run()
