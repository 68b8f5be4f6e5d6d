"""The README and the site stay true: links, commands, snippets, sentences, and the pages made from the code."""

import dataclasses
import json
import re
import runpy
import shlex
import shutil
import statistics
import subprocess
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from babeltune.cli import GROUPS, app
from babeltune.cli.render import method_document
from babeltune.method import registry
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.cluster import Cluster
from babeltune.schema.json_schema import field_notes, records_of
from babeltune.schema.records import Sweep
from benchmarks import readme

ROOT = Path(__file__).parents[1]
SKILL = ROOT / "platform/babeltune/bundled/SKILL.md"
TOP = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", SKILL]
PAGES = [*TOP, *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
COMMANDS = get_command(app).commands
GENERATED = ("reference/", "faults.md", "benchmarks.md")
README = TEXTS["README.md"]
LONGEST = 30  # words of a sentence


def blocks(language):
    """The code blocks of all pages in a language."""
    return [block for text in TEXTS.values() for block in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)]


def code_lines(program):
    """The command lines in code blocks and code spans that start with this program, each once."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    for text in TEXTS.values():
        lines += re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return sorted({line for line in lines if line.startswith(program + " ") and "NAME" not in line})


def links():
    for name, text in TEXTS.items():
        for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
            yield name, link


@pytest.mark.parametrize(("name", "link"), sorted(set(links())))
def test_a_relative_link_leads_somewhere(name, link):
    target = (ROOT / name).parent / link
    page_path = target.resolve().relative_to(ROOT / "docs").as_posix() if name.startswith("docs/") else ""
    page_path = page_path or target.resolve().relative_to(ROOT).as_posix().removeprefix("docs/")
    assert target.exists() or page_path.startswith(GENERATED)


@pytest.mark.parametrize("line", code_lines("babeltune"))
def test_a_command_line_parses(line):
    _, name, *arguments = shlex.split(line.partition(" > ")[0], comments=True)
    assert name in COMMANDS, f"no command {name!r}"
    with click.Context(COMMANDS[name], info_name=name) as context:
        COMMANDS[name].parse_args(context, arguments)
    for argument in arguments:
        if argument.endswith(".yaml") and argument.startswith(("search_spaces/", "benchmarks/", "clusters/")):
            assert (ROOT / argument).is_file()


def test_a_benchmark_that_is_named_exists():
    figures = (ROOT / "docs/measured/figures.json").read_text(encoding="utf-8")
    modules = {line.split()[2] for line in code_lines("python") if " benchmarks." in line}
    modules |= set(re.findall(r"python -m (benchmarks\.\w+)", figures))
    assert modules
    for module in modules:
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


def test_the_command_that_trains_alone_takes_the_options_that_are_shown():
    lines = [line for line in code_lines("python") if " babeltune.train " in line]
    assert lines
    for line in lines:
        _, _, _, file, *options = shlex.split(line, comments=True)
        assert set(options[::2]) <= {"--set", "--with", "--out", "--export", "--device"}
        sets = [value for key, value in zip(options[::2], options[1::2], strict=True) if key == "--set"]
        read_sweep(ROOT / file, assignments=sets)


def test_a_make_target_that_is_named_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {shlex.split(line, comments=True)[1] for line in code_lines("make")}
    assert {"sweep", "test"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_pages_fails_where_there_is_no_chromium(tmp_path):
    command = [shutil.which("make"), "--old-file=.venv/.installed.dev", "pages"]  # the environment counts as made
    ended = subprocess.run(command, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stdout == "there is no Chromium; on Debian: apt-get install chromium\n"


def test_snippets_are_yaml_and_the_overlay_that_is_shown_makes_a_sweep(tmp_path):
    assert all(yaml.safe_load(block) for block in blocks("yaml"))
    shown = [block for block in blocks("yaml") if "root: /data" in block]
    assert len(shown) == 2
    for number, block in enumerate(shown):
        place = tmp_path / str(number)
        place.mkdir()
        for name in ("train", "dev", "test"):
            rows = "".join(f"{name} un {i}\t{name} one {i}\n" for i in range(30))
            (place / f"{'news' if name == 'train' else name}.tsv").write_text(f"french\tenglish\n{rows}")
        overlay = place / "my_data.yaml"
        overlay.write_text(block.replace("/data", str(place)).replace("news.tsv.gz", "news.tsv"))
        sweep = read_sweep(ROOT / "search_spaces/static.yaml", overlays=[str(overlay)])
        assert [task.name for task in sweep.data.dev] == ["mine"]


def test_the_first_page_links_to_each_page_of_the_site():
    """The pages of the papers' tables are behind their index."""
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    pages = set(re.findall(r": (\S+\.md)$", menu, re.MULTILINE))
    linked = set(re.findall(r"\]\(([^)]+\.md)\)", TEXTS["docs/index.md"])) | {"index.md"}
    assert len(pages) > 30
    assert {page for page in pages if not page.startswith("tables/")} | {"tables/index.md"} == linked


@pytest.mark.parametrize("record", [Sweep, Cluster])
def test_every_key_of_a_file_and_setting_of_a_method_has_a_text_in_the_reference(record):
    for name, part in records_of(record).items():
        notes = field_notes(part)
        assert [f"{name}.{each.name}" for each in dataclasses.fields(part) if len(notes.get(each.name, "")) < 10] == []
    for name in registry.available():
        assert [each.name for each in method_document(name).settings if len(each.source) < 10] == []


def test_types_and_bars_of_the_reference_are_written_for_people(hooks):
    assert hooks.type_words("tuple[Source, ...] | None") == "list of `Source` of any `format`"
    assert hooks.type_words("dict[str, object] | Literal['paper']") == "any value by name or `paper`"
    assert hooks.type_words("int | Literal['teacher']") == "whole number or `teacher`"
    assert hooks.cell("a `b | c` | d") == r"a `b | c` \| d"
    assert [line for path, page in hooks.PAGES.items() for line in re.findall(r"`[^`\n]*\\\|[^`\n]*`", page())] == []


def test_help_and_reference_list_the_commands_in_the_order_of_work(hooks):
    names = [name for group in GROUPS.values() for name in group]
    assert names[:3] == ["init", "plan", "submit"]
    assert list(COMMANDS) == names
    assert re.findall(r"^## (.*)", hooks.command_line(), re.MULTILINE) == names
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "100"}).output
    assert [group for group in GROUPS if group in shown] == list(GROUPS)


@pytest.fixture(scope="module")
def hooks():
    """The module that makes pages of the site from the code."""
    return SimpleNamespace(**runpy.run_path(str(ROOT / "docs/hooks.py")))


def test_each_picture_of_a_sweep_is_shown_and_small():
    pictures = sorted((ROOT / "docs/pictures").iterdir())
    shown = re.findall(r"!\[[^\]]+\]\(\.\./pictures/([^)]+)\)", TEXTS["docs/how-to/see-a-sweep.md"])
    assert sorted(shown) == [picture.name for picture in pictures]
    assert max(picture.stat().st_size for picture in pictures) <= 60_000
    assert sum(picture.stat().st_size for picture in pictures) <= 500_000


def test_the_readme_fits_a_few_screens_and_has_the_figures_that_were_measured():
    assert len(README.splitlines()) <= 200
    assert len(README.split()) <= 1500
    assert readme.table() in README, "`python -m benchmarks.readme` writes them"


def test_a_record_that_changes_changes_the_figures_of_the_readme(tmp_path, monkeypatch):
    shutil.copytree(readme.MEASURED, tmp_path / "measured", ignore=shutil.ignore_patterns("tables"))
    monkeypatch.setattr(readme, "MEASURED", tmp_path / "measured")
    monkeypatch.setattr(readme, "README", tmp_path / "README.md")
    readme.README.write_text(README, encoding="utf-8")
    record = readme.MEASURED / "faults.json"
    costs = ("nothing; a word", "nothing", "a shoe, red")
    rows = [[f"fault {number}", "1.0", "0", lost, "x"] for number, lost in enumerate(costs)]
    record.write_text(json.dumps({"rows": rows}), encoding="utf-8")
    readme.write_after(tmp_path / "elsewhere.json")
    assert readme.README.read_text(encoding="utf-8") == README
    readme.write_after(record)
    written = readme.README.read_text(encoding="utf-8").splitlines()
    (changed,) = (new for old, new in zip(README.splitlines(), written, strict=True) if old != new)
    assert changed == "| faults injected into sweeps | 3: 2 lost nothing, 1 lost a shoe (fault 2) |"


@pytest.mark.parametrize("name", ["README.md", "docs/tutorial.md"])
def test_the_output_of_make_sweep_that_is_shown_has_the_measured_figures(name):
    shown = re.findall(r"^test/everyday/\S*accuracy +(0\.\d+)", TEXTS[name], re.MULTILINE)
    ((_, _, measured),) = [row for row in readme.records("figures") if row[1] == "make sweep"]
    assert len(shown) == 5
    for value in shown:
        assert str(Decimal(value).quantize(Decimal("0.001"), ROUND_HALF_UP)) in measured


def prose(text):
    """The sentences of a page, without code, tables and headings; code spans and links count as their words."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"^(\s*[|>#].*|!.*)$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "X", text))
    for paragraph in re.split(r"\n\s*\n|\n\s*[-*]\s|\n\s*\d+\.\s", text):
        for sentence in re.split(r"(?<=[.!?:])\s+", paragraph.replace("\n", " ")):
            words = re.findall(r"[A-Za-z][\w'-]*", sentence)
            if len(words) >= 4:
                yield sentence.strip(), len(words)


def test_a_module_that_the_architecture_names_exists():
    """The map of the code stays true when files move."""
    names = re.findall(r"`([a-z_/]+(?:\.py|/))`", TEXTS["docs/architecture.md"].split("## Life of a trial")[0])
    assert len(names) > 30
    for name in names:
        assert (ROOT / "platform/babeltune" / name).exists() or (ROOT / name).exists(), name


@pytest.mark.parametrize("name", TEXTS)
def test_no_sentence_is_too_long(name):
    long = [f"{count}: {sentence}" for sentence, count in prose(TEXTS[name]) if count > LONGEST]
    assert not long, "\n".join(long)


def test_sentences_are_short():
    counts = sorted(count for text in TEXTS.values() for _, count in prose(text))
    assert statistics.mean(counts) <= 15
    assert counts[int(0.9 * len(counts))] <= 24
