"""SKILL.md runs word by word: what an agent that follows it gets."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from babeltune.promotion.gates import Decision
from babeltune.schema.base import from_plain
from processes import ended

SKILL = Path(__file__).parents[1] / "platform" / "babeltune" / "bundled" / "SKILL.md"
DEADLINE_S = 3600
REFUSABLE = "babeltune promote "  # begins the command that may end with 3, as the page says


def lines():
    """The page's commands, in order."""
    text = SKILL.read_text(encoding="utf-8")
    return [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]


def test_the_page_names_itself_as_agents_read_it():
    head = SKILL.read_text(encoding="utf-8").split("---")[1]
    assert re.search(r"^name: babeltune$", head, re.MULTILINE)
    assert 20 < len(re.search(r"^description: (.*)$", head, re.MULTILINE)[1]) < 1024
    assert sum(line.startswith("babeltune ") for line in lines()) >= 10


@pytest.mark.long
def test_the_page_runs_word_by_word_and_opens_sealed_tests_once(tmp_path):
    script = ["set -e"]
    for line in lines():
        script.append(f"{line} || test $? = 3" if line.startswith(REFUSABLE) else line)
    place = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("BABELTUNE")}
    environment |= {"PATH": place}
    done = ended("bash", "-c", "\n".join(script), cwd=tmp_path, env=environment, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr[-3000:]
    read = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.glob("*.json")}
    assert [read[name]["state"] for name in ("first", "second", "refit")] == ["finished"] * 3
    decision = from_plain(Decision, read["decision"])
    assert decision.openings == 1
    assert (decision.verdict == "promote") == (tmp_path / "my-encoder").is_dir()
    assert len((tmp_path / "storage" / "openings.jsonl").read_text(encoding="utf-8").splitlines()) == 1
    assert read["compare"]["overall"]
    assert read["seeds"]["groups"]
