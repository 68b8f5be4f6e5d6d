"""What a command does with odd streams, locales, arguments and interrupts, and with an error that nobody foresaw."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from babeltune import __version__
from babeltune.signals import acknowledged
from waiting import PATIENCE_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "babeltune.cli"]


def run(*arguments, shell="", code=None, **environment):
    """The finished process of a command (or of Python `code`), with the shell's redirections."""
    command = [sys.executable, "-c", code] if code else COMMAND
    words = ["bash", "-c", f'exec "$@" {shell}', "bash", *command, *map(os.fsencode, arguments)]
    return subprocess.run(words, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, timeout=PATIENCE_S)


@pytest.mark.long
@pytest.mark.parametrize("shell", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_command_runs_with_closed_streams(shell, tmp_path):
    done = run("methods", shell=shell)
    assert (done.returncode, done.stderr) == (0, b"")
    out = run("plan", "search_spaces/quickstart.yaml", "--json", shell=shell)
    assert out.returncode == 0
    assert b"Traceback" not in out.stderr


def test_a_command_imports_nothing_from_the_folder_in_which_the_user_stands(tmp_path):
    for name in ("torch", "yaml", "rich", "typer", "pydantic"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(f'{__name__} of the user')")
    # A process of a library is started by the command, and inherits its environment.
    code = (
        "import subprocess, sys; from babeltune.program import run_program\n"
        "run_program(lambda: subprocess.run([sys.executable, '-c', 'import yaml'], check=True))"
    )
    spelled = [[str(Path(sys.executable).with_name("babeltune")), "--version"]]
    spelled += [[sys.executable, *words, "--version"] for words in (["-mbabeltune.cli"], ["-uBm", "babeltune.cli"])]
    for command in ([*COMMAND, "--version"], *spelled, [sys.executable, "-P", "-c", code]):
        for path in ("", os.pathsep, f"{os.pathsep}/nowhere", f"/nowhere{os.pathsep}"):  # an empty part is that folder
            environment = {**os.environ, "PYTHONPATH": path}
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
            )
            assert (done.returncode, done.stderr) == (0, ""), (command, path)


@pytest.mark.parametrize(("given", "spins"), [({}, b"30000"), ({"GOMP_SPINCOUNT": "7"}, b"7")])
def test_threads_of_what_a_command_starts_spin_briefly(given, spins, monkeypatch):
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    code = (
        "import subprocess; from babeltune.program import run_program\n"
        "run_program(lambda: subprocess.run(['printenv', 'GOMP_SPINCOUNT'], check=True))"
    )
    assert run(code=code, **given).stdout.strip() == spins


@pytest.mark.parametrize(("typed", "offered"), [("pl", b"plan\n"), ("runs --la", b"--languages\n")])
def test_a_shell_completes_commands_and_options(typed, offered):
    words = {"COMP_WORDS": f"babeltune {typed}", "COMP_CWORD": str(len(typed.split()))}
    code = "import sys; from babeltune.cli import main; sys.argv = ['babeltune']; main()"
    done = run(code=code, _BABELTUNE_COMPLETE="complete_bash", **words)
    assert (done.returncode, done.stdout.strip()) == (0, offered.strip())


def test_an_error_with_a_closed_stderr_keeps_its_exit_code():
    assert run("methods", "nosuch", shell="2>&-").returncode == 2


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_output_that_cannot_be_written_is_one_line(options):
    done = run("methods", *options, shell="> /dev/full")
    assert done.returncode == 1
    assert done.stderr.decode().count("\n") == 1
    assert "No space left on device" in done.stderr.decode()


@pytest.mark.long
def test_a_path_with_an_accent_works_in_a_locale_without_utf_8(tmp_path):
    place = tmp_path / "é" / "ma_suite.yaml"
    place.parent.mkdir()
    shutil.copy(ROOT / "search_spaces" / "quickstart.yaml", place)
    for locale in ({"LC_ALL": "C"}, {"LC_ALL": "POSIX", "PYTHONIOENCODING": "ascii"}):
        plain = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "BABELTUNE_HOME": str(tmp_path / "é"), **locale}
        done = run("plan", place, **plain)
        assert done.returncode == 0
        assert b"Traceback" not in done.stderr
        gone = run("plan", place.with_name("autre.yaml"), **plain)
        assert gone.returncode == 2
        assert b"Traceback" not in gone.stderr


def test_an_argument_that_is_not_utf_8_is_refused():
    done = run("plan", "/tmp/\udcff.yaml")
    assert done.returncode == 2
    assert r"b'/tmp/\xff.yaml' is not UTF-8; rename the file" in done.stderr.decode()


def test_a_working_folder_that_was_deleted_is_one_line():
    code = (
        "import os, sys, tempfile; folder = tempfile.mkdtemp(); os.chdir(folder); os.rmdir(folder)\n"
        "from babeltune.cli import main; sys.argv = ['babeltune', 'methods']; main()"
    )
    done = run(code=code)
    assert done.returncode == 2
    assert "that this command runs in was deleted; go to one that exists" in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("arguments", [["plan", "a" * 5000], ["runs", "--cluster", "a" * 5000]])
def test_a_name_that_is_too_long_for_a_file_is_one_line(arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert "File name too long" in done.stderr.decode()
    assert len(done.stderr) < 600


def test_an_unexpected_error_is_one_line_and_a_file(tmp_path):
    code = (
        "import sys; from babeltune.program import run_program; sys.argv = ['babeltune', 'x']\n"
        "def fail(): raise KeyError('postgresql://me:s3cret@host/db')\n"
        "run_program(fail)"
    )
    done = run(code=code, TMPDIR=str(tmp_path))
    message = done.stderr.decode()
    assert done.returncode == 1
    assert message.count("\n") == 1
    assert f"KeyError: 'postgresql://…@host/db' (babeltune {__version__})" in message
    (traceback_file,) = tmp_path.glob("babeltune-*.traceback.txt")
    assert f"in {traceback_file}; please report it. BABELTUNE_DEBUG=1 prints it" in message
    assert traceback_file.stat().st_mode & 0o777 == 0o600
    text = traceback_file.read_text(encoding="utf-8")
    assert "in fail" in text
    assert "s3cret" not in text + message
    shown = run(code=code, TMPDIR=str(tmp_path), BABELTUNE_DEBUG="1").stderr.decode()
    assert "Traceback (most recent call last)" in shown
    assert len(list(tmp_path.iterdir())) == 1


def test_an_unexpected_error_without_room_for_its_traceback_is_still_one_line(tmp_path):
    code = (
        "import tempfile; from babeltune.program import run_program; tempfile.tempdir = '/nosuch'\n"
        "run_program(lambda: 1 / 0)"
    )
    done = run(code=code)
    assert done.returncode == 1
    assert re.fullmatch(r"error: ZeroDivisionError: .*no file could take its traceback.*\n", done.stderr.decode())


@pytest.mark.parametrize("gap", [0.0, *(pytest.param(gap, marks=pytest.mark.long) for gap in (0.1, 0.3))])
def test_two_interrupts_while_preparing_end_with_130(gap, tmp_path):
    environment = {**os.environ, "BABELTUNE_HOME": str(tmp_path)}
    command = [*COMMAND, "submit", "search_spaces/quickstart.yaml"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "the corpus" in line or "starting Ray" in line:
            break
    process.send_signal(signal.SIGINT)
    time.sleep(gap)
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 130, "".join(lines) + rest
    assert "Traceback" not in rest
    assert "KeyboardInterrupt" not in rest


def test_each_ctrl_c_is_acknowledged_at_once(capfd):
    before = signal.getsignal(signal.SIGINT)
    with acknowledged():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert "interrupted; closing what is open" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert "interrupted again" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_within_a_callback_is_not_lost():
    code = (
        "import gc, signal, time; from babeltune.program import run_program\n"
        "class Loud:\n    def __del__(self): signal.raise_signal(signal.SIGINT); time.sleep(0)\n"
        "def wait():\n    Loud(); gc.collect()\n    while True: time.sleep(0.01)\n"
        "run_program(wait)"
    )
    done = run(code=code)
    assert (done.returncode, done.stderr) == (130, b"")
