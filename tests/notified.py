"""A program that a cluster file may notify of events, and the events so far."""

import json
import sys

from babeltune.schema.notice import Notice

APPEND = "import pathlib, sys; pathlib.Path(sys.argv[1]).open('a').write(sys.stdin.read() + chr(10))"


def teller(file):
    """Appends each event to the file."""
    return Notice(command=(sys.executable, "-c", APPEND, str(file)))


def events_in(file):
    """The events so far: their names and their texts."""
    return [(event["event"], event["text"]) for event in map(json.loads, file.read_text().splitlines())]
