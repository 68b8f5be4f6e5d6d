"""The mistakes of newcomers: each is one message with the value, the rule and the next step, and the site has it."""

import socket

import pytest

import babeltune as bt
from babeltune.errors import SpecError
from babeltune.planning.sweep_file import read_sweep
from babeltune.training.checkpoint import checkpoint_folder
from made_sweeps import add_trial, make_sweep, whole_sweep
from newcomers import MISTAKES, PAGE, table

DEV = "eng\tfra\n" + "".join(f"dev {number}\tdeux {number}\n" for number in range(9))


@pytest.fixture(scope="module")
def places(tmp_path_factory, tiny_file, tiny_stores):
    """What the mistakes name: a data folder with odd files, a cluster file, a busy port, and a storage."""
    place = tmp_path_factory.mktemp("newcomer")
    data, home = place / "data", place / "home"
    data.mkdir()
    files = {
        "train": "english\tfrench\nwater\teau\nsea\tmer\n",
        "one": "eng\tfra\nwater\teau\n",
        "empty": "",
        "dev": DEV,
    }
    for name, text in files.items():
        (data / f"{name}.tsv").write_text(text, encoding="utf-8")
    (place / "cluster.yaml").write_text("name: mine\nstorage: /tmp\n", encoding="utf-8")
    typo = tiny_file.read_text(encoding="utf-8").replace("{kind: none}", "{knid: none}")
    (place / "typo.yaml").write_text(typo, encoding="utf-8")
    saved = whole_sweep(home, tiny_file, tiny_stores)
    (checkpoint_folder(saved.trial(1), 1) / "student.safetensors").write_bytes(b"altered")
    begun = make_sweep(home, read_sweep(tiny_file), state="stopped")
    add_trial(begun, 0, [0.3], "stopped", temperature=0.1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield {
            "tiny": tiny_file,
            "typo": place / "typo.yaml",
            "cluster": place / "cluster.yaml",
            "data": data,
            "home": home,
            "begun": begun.id,
            "port": taken.getsockname()[1],
        }


def filled(text, places):
    return text.format(**places)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.did)
def test_a_mistake_gets_the_value_the_rule_and_the_next_step(mistake, places, command, monkeypatch):
    monkeypatch.setenv("BABELTUNE_HOME", str(places["home"]))
    code, out, err = command(*(filled(word, places) for word in mistake.arguments))
    said = " ".join(line for line in err.splitlines() if not line.startswith("warning: "))
    assert (code, out) == (mistake.code, ""), err
    assert said.startswith("error: ")
    for part in (mistake.value, mistake.rule, mistake.step):
        assert filled(part, places) in said
    assert "Traceback" not in err


def test_there_are_twenty_mistakes_and_each_is_another_one():
    assert len(MISTAKES) >= 20
    assert (
        len({mistake.arguments for mistake in MISTAKES}) == len({mistake.did for mistake in MISTAKES}) == len(MISTAKES)
    )


def test_the_site_shows_these_mistakes_and_messages():
    assert table() in PAGE.read_text(encoding="utf-8"), "run `python tests/newcomers.py`"


@pytest.mark.parametrize("given", [42, None, {"name": "mine"}])
def test_a_python_object_that_is_no_sweep_is_refused_with_the_next_step(given):
    with pytest.raises(SpecError, match=f"is a {type(given).__name__}; give the path of a sweep file, or a Sweep"):
        bt.submit(given)
