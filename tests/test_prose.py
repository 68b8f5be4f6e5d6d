"""The check of the repository's prose sees each fault that it is for, and nothing in good text."""

import pytest

from prose import LONGEST_FUNCTION, LONGEST_SENTENCE, MOST_PARAMETERS, faults_of, shared_names

LONG = " ".join(["word"] * (LONGEST_SENTENCE + 1)) + "."
MODULE = "platform/babeltune/example.py"
GOOD = '''"""A module. It has `a.code.span` and two sentences."""

TIMEOUT_S = 3.0
"""Seconds that a worker group may wait for its heartbeat."""


def poll(store, timeout_s):
    """Whether the store answers within `timeout_s`."""
'''


def test_good_text_has_no_faults():
    assert faults_of(MODULE, GOOD) == []
    assert faults_of("docs/page.md", "# Title\n\nA short sentence.\n") == []
    assert faults_of("clusters/a.yaml", "worker_groups: 2 # trials at once\n") == []


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        (f'"""{LONG}"""\n', f"{LONGEST_SENTENCE + 1} words in a sentence"),
        ('"""Trials of which one failed."""\n', "'of which' is hard to read; write: two sentences"),
        ("# None for a text that is none\n", "'is none' is hard to read; write: there is no …"),
        ('print(f"so many rows as {name} has")\n', "'so many' is hard to read"),
        ('"""Tells the pool, for whoever looks on."""\n', "'for whoever looks on' is hard to read; write: for readers"),
        ("found = 3\n", "the name 'found' does not say what it is"),
        ("def rows(given):\n    pass\n", "the name 'given' does not say what it is"),
        ('RATE = 2\n"""Of the learning."""\n', "starts in mid-sentence: Of the learning."),
        ('RATE = 2\n"""seconds of a wait."""\n', "starts in mid-sentence: seconds of a wait."),
        ("def long():\n" + "    pass\n" * LONGEST_FUNCTION, f"long has {LONGEST_FUNCTION + 1} lines"),
        (f"def wide({', '.join(f'a{i}' for i in range(MOST_PARAMETERS + 1))}): ...\n", "wide has 8 parameters"),
        ("ROWS = [*a, *(b for b in c), {**d}, e if f else g]\n", "5 comprehensions, walruses, splats and conditional"),
        ("class Broad:\n" + 21 * "    def m(self): ...\n", "Broad has 21 methods, at most 20"),
    ],
)
def test_a_planted_fault_is_reported_with_its_line(planted, found):
    faults = [str(fault) for fault in faults_of(MODULE, "import re\n\n" + planted)]
    assert len(faults) == 1
    assert faults[0].startswith(f"{MODULE}:")
    assert found in faults[0]


def test_only_commands_of_typer_may_have_many_parameters():
    wide = f"def wide({', '.join(f'a{i}' for i in range(MOST_PARAMETERS + 1))}): ...\n"
    path = "platform/babeltune/cli/example.py"
    assert faults_of(path, f"@app.command()\n{wide}") == []
    assert "wide has 8 parameters" in str(faults_of(path, f"@other()\n{wide}")[0])


def test_markdown_and_comments_of_yaml_are_read_too():
    assert "31 words" in str(faults_of("docs/page.md", f"# Title\n\n{LONG}\n")[0])
    assert "'of which'" in str(faults_of("docs/page.md", "Four, of which one.\n")[0])
    assert str(faults_of("clusters/a.yaml", "name: x\nworkers: 1 # so many for each\n")[0]).startswith(
        "clusters/a.yaml:2: 'so many'"
    )


def test_in_tests_words_count_and_sentences_do_not():
    assert faults_of("tests/test_x.py", f'"""{LONG}"""\n') == []
    assert len(faults_of("tests/test_x.py", '"""Rows of which one is bad."""\n')) == 1


def test_two_public_classes_of_one_name_are_a_fault():
    one, other = "platform/babeltune/one.py", "methods/babeltune_methods/other.py"
    text = "class Rows: ...\n\n\nclass Config: ...\n\n\nclass _Own: ...\n"
    assert [str(fault) for fault in shared_names({one: text, other: text, "tests/test_rows.py": text})] == [
        f"{other}:1: the class 'Rows' has the name of one in {one}"
    ]
