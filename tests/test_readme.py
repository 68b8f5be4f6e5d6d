"""The README stays true: its links, its commands, and its map of every file."""

import fnmatch
import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest
from typer.main import get_command

from babeltune.cli import app

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = get_command(app).commands
LINKS = re.findall(r"\]\((?!https?://)([^)#]+)\)", TEXT)


def code_lines(program):
    """The command lines of the README's code blocks and code spans that start with this program."""
    blocks = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    lines += re.findall(r"`([^`\n]+)`", prose)
    return [line for line in lines if line.startswith(program + " ")]


@pytest.mark.parametrize("link", sorted(set(LINKS)))
def test_a_relative_link_leads_somewhere(link):
    assert (ROOT / link).exists()


@pytest.mark.parametrize("line", code_lines("babeltune"))
def test_a_command_line_parses(line):
    _, name, *arguments = shlex.split(line, comments=True)
    assert name in COMMANDS, f"no command {name!r}"
    with click.Context(COMMANDS[name], info_name=name) as context:
        COMMANDS[name].parse_args(context, arguments)
    for argument in arguments:
        if argument.endswith(".yaml") and argument.startswith(("search_spaces/", "benchmarks/", "clusters/")):
            assert (ROOT / argument).is_file()


def test_a_benchmark_that_is_named_exists():
    named = [line.split()[2] for line in code_lines("python") if " benchmarks." in line]
    assert named
    for module in named:
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file()


def test_the_command_that_trains_alone_takes_the_options_that_are_shown():
    from babeltune.spec.sweep_file import read_sweep

    lines = [line for line in code_lines("python") if " babeltune.train " in line]
    assert lines
    for line in lines:
        _, _, _, file, *options = shlex.split(line, comments=True)
        assert set(options[::2]) <= {"--set", "--with", "--out", "--export", "--device"}
        sets = [value for key, value in zip(options[::2], options[1::2], strict=True) if key == "--set"]
        read_sweep(ROOT / file, assignments=sets)


def test_a_make_target_that_is_named_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = {shlex.split(line, comments=True)[1] for line in code_lines("make")}
    assert {"sweep", "test"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"


def mapped():
    """The paths of the map: what stands in backticks in the first column of its tables."""
    section = TEXT.partition("## The map")[2]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def tracked():
    """The files that git tracks, and new ones that it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("this is not a git checkout, so nobody says which files belong to it")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_every_file_is_in_the_map():
    patterns = mapped()
    missing = [name for name in tracked() if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    assert not missing, f"add a line to the README's map for: {', '.join(missing)}"


def test_everything_in_the_map_is_a_file():
    names = tracked()
    gone = [pattern for pattern in mapped() if not fnmatch.filter(names, pattern)]
    assert not gone, f"remove from the README's map: {', '.join(gone)}"


def test_the_map_says_what_each_entry_is_for_and_names_it_once():
    names = mapped()
    assert len(names) == len(set(names))
    section = TEXT.partition("## The map")[2]
    for line in re.findall(r"^\| `[^`]+` \|(.*)\|$", section, re.MULTILINE):
        assert line.strip()
