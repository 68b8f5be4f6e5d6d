"""A sweep's report: its numbers are the leaderboard's, and it needs nothing but itself."""

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser

import pytest

from babeltune.errors import SweepError
from babeltune.evaluation.metric_names import COMPUTE
from babeltune.planning.recorded import sweep_id
from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.decisions import DecisionRecord, read_decisions, record_decision
from babeltune.promotion.gates import Decision
from babeltune.schema.records import Objective
from babeltune.sweep.state.leaderboard import leaderboard
from babeltune.sweep.sync.view import StorageView
from babeltune.sweep_report.gather import gather
from babeltune.sweep_report.page import document
from babeltune.sweep_report.record import LanguageScore
from babeltune.sweep_report.render import markdown, render
from babeltune.sweep_report.sections.sealed_tests import dev_metric_of
from babeltune.sweep_report.words import verdict
from babeltune.sweep_report.write import LARGEST, page, write_report
from made_sweeps import add_trial, make_sweep, rewrite_ledger

pytestmark = pytest.mark.usefixtures("undrawn")
VOID = {"meta", "link", "br", "hr", "img", "input", "wbr"}
FETCHING = ("src", "href", "xlink:href", "action", "data", "poster", "srcset", "background")


@dataclass
class Element:
    tag: str
    attributes: dict
    text: str = ""
    inside: list = field(default_factory=list)

    def all(self, *tags):
        for child in self.inside:
            if child.tag in tags:
                yield child
            yield from child.all(*tags)

    def words(self):
        return " ".join([self.text, *(child.words() for child in self.inside)]).strip()


class Tree(HTMLParser):
    """The elements of a page; an end tag that closes another element than the last opened one is an error."""

    def __init__(self, text):
        super().__init__()
        self.root = Element("root", {})
        self.open = [self.root]
        self.feed(text)
        self.close()
        assert self.open == [self.root], f"never closed: {[each.tag for each in self.open[1:]]}"

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"an attribute stands twice in <{tag}>"
        element = Element(tag, dict(attrs))
        self.open[-1].inside.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.open[-1].inside.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open[-1].tag == tag
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].text += data


@pytest.fixture(scope="module")
def report(searched):
    return gather(searched[1])


@pytest.fixture(scope="module")
def html(report):
    return page(report, "html")


@pytest.fixture(scope="module")
def tree(html):
    return Tree(html).root


def cells(table):
    return [[cell.words() for cell in row.all("th", "td")] for row in table.all("tr")]


def test_the_leaderboard_of_the_report_is_the_sweeps(searched, report, tree):
    rows = [row for row in leaderboard(searched[1]) if row.metrics]
    assert report.winner.row == rows[0]
    table = next(each for each in tree.all("table") if "higher is better" in each.words())
    titles, *shown = cells(table)
    assert titles[:4] == ["trial", "state", "everyday/accuracy", "95 % interval"]
    scores = [(row[0], row[2]) for row in shown if row[2] != "–"]
    assert scores == [(row.name, f"{row.metrics['dev/everyday/accuracy']:.4f}") for row in rows]
    assert [row[0] for row in shown if row[1] == "failed"] == ["t0001"]
    winner = report.winner.row.name
    assert next(tree.all("h1")).words() == "Sweep searched"
    verdict = next(each for each in tree.all("p") if each.attributes.get("class") == "verdict")
    assert f"{winner} is the best of 3 trials: everyday/accuracy {scores[0][1]}" in verdict.words()


def with_baselines(report, score, **values):
    """The report with an off-the-shelf model of this score, and the values of the winner and of the model by subset."""
    model = replace(report.winner, row=replace(report.winner.row, name="ready"), is_baseline=True, value=score)
    languages = tuple(
        LanguageScore(metric=f"dev/everyday/{pair}/accuracy", values=((report.winner.row.name, value), ("ready", its)))
        for pair, (value, its) in values.items()
    )
    untrained = [each for each in report.standings if each.row.name == "untrained"]
    return replace(report, standings=(*report.trials, *untrained, model), languages=languages)


@pytest.mark.parametrize(
    ("better", "words"),
    [(-0.4, "was worth it: "), (0.4, "was not worth it: "), (0.001, "open whether training was worth it: ")],
)
def test_the_first_sentence_says_whether_training_was_worth_it(report, better, words):
    first, *others = verdict(with_baselines(report, report.winner.value + better))
    assert words in first
    assert f"has everyday/accuracy {report.winner.value:.4f}, and ready, which needs no training, " in first
    assert len(others) == 2


def test_the_verdict_names_the_subsets_in_which_an_untrained_model_is_ahead(report):
    compared = with_baselines(report, 0.01, **{"fra-eng": (0.5, 0.6), "kor-eng": (0.5, 0.4), "rus-eng": (0.5, 0.5)})
    assert verdict(compared)[1] == "ready is ahead in everyday fra-eng (0.5000 against 0.6000)."


def test_without_a_model_to_compare_with_nothing_is_said_of_worth(report):
    ours = tuple(each for each in report.standings if each.row.name == "untrained" or not each.is_baseline)
    assert verdict(replace(report, standings=ours))[0].startswith(f"{report.winner.row.name} is the best of")


def test_intervals_are_standard_errors_of_the_dev_rows_within_what_is_possible(report):
    low, high = report.winner.interval
    share = report.winner.value
    assert report.winner.error == pytest.approx((share * (1 - share) / 30) ** 0.5)
    assert (low, high) == pytest.approx((share - 1.96 * report.winner.error, share + 1.96 * report.winner.error))
    assert all(0 <= each.interval[0] <= each.interval[1] <= 1 for each in report.standings if each.interval)


def test_the_page_asks_no_server_and_runs_no_program(html, tree):
    for element in tree.all(*{each.tag for each in walk(tree)}):
        for name in FETCHING:
            assert (element.attributes.get(name) or "#").startswith(("#", "data:")), element
        assert not [name for name in element.attributes if name.startswith("on")]
    assert not list(tree.all("script", "iframe", "object", "embed", "base"))
    assert "@import" not in html
    assert set(re.findall(r"url\((.)", html)) <= {"#"}
    policy = next(each.attributes for each in tree.all("meta") if "http-equiv" in each.attributes)
    assert policy["content"].startswith("default-src 'none'")
    assert len(html.encode()) < LARGEST


def walk(element):
    for child in element.inside:
        yield child
        yield from walk(child)


def test_every_chart_has_a_name_words_and_its_numbers_as_a_table(tree):
    figures = list(tree.all("figure"))
    assert len(figures) >= 6
    folded = [each for each in tree.all("details") if list(each.all("table"))]
    assert len(folded) == len(figures)
    for chart in (svg for each in figures for svg in each.all("svg")):
        assert chart.attributes["role"] == "img"
        texts = {each.attributes["id"]: each.words() for each in chart.all("title", "desc")}
        assert all(texts[name] for name in chart.attributes["aria-labelledby"].split())


def test_tables_have_captions_and_headers_and_ids_are_unique(tree):
    for table in tree.all("table"):
        assert [each.words() for each in table.all("caption")] != [""]
        assert all(each.attributes["scope"] in ("col", "row") for each in table.all("th"))
        assert len({len(row) for row in cells(table)}) == 1, "every row has every column"
    ids = Counter(each.attributes["id"] for each in walk(tree) if "id" in each.attributes)
    assert set(ids.values()) == {1}
    links = [each.attributes["href"][1:] for each in walk(tree) if each.attributes.get("href", "").startswith("#")]
    assert set(links) <= ids.keys()
    assert [each for each in tree.all("html") if each.attributes["lang"] == "en"]
    for region in (each for each in walk(tree) if each.attributes.get("class") == "scroll"):
        assert region.attributes["tabindex"] == "0"
        assert region.attributes["aria-label"]


def test_the_page_has_styles_for_dark_screens_and_for_paper(html):
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html
    used = set(re.findall(r"var\((--[\w-]+)\)", html))
    light, dark = re.findall(r":root \{([^}]*)\}", html)
    for variables in (light, dark):
        assert used <= set(re.findall(r"(--[\w-]+):", variables))
    assert not re.search(r"#0101\d\d\b", html), "every colour of a chart is the style sheet's"


def luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """WCAG 2.2's ratio."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_and_lines_stand_out_from_the_page_in_light_and_dark(html):
    for block in re.findall(r":root \{([^}]*)\}", html):
        colors = dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", block))
        for behind in ("--page", "--card", "--mark"):
            assert min(contrast(colors[name], colors[behind]) for name in ("--ink", "--muted", "--link")) >= 4.5
        lines = [name for name in colors if name.startswith("--series")]
        assert min(contrast(colors[name], colors["--page"]) for name in (*lines, "--faint")) >= 3


def test_the_sweep_file_in_the_report_makes_the_same_sweep(searched, report, tree, tmp_path):
    sweep, folder = searched
    (code,) = (each for each in tree.all("pre") if each.attributes["aria-label"] == "Sweep file searched.yaml")
    path = tmp_path / "searched.yaml"
    path.write_text(code.words(), encoding="utf-8")
    assert sweep_id(read_sweep(path)) == folder.id == sweep_id(sweep) == report.provenance.id
    assert dict(report.provenance.weights).keys() >= {"student.safetensors"}


def hostile(copied):
    """The copied sweep; one trial's settings and another's reason are markup."""
    _, folder, _ = copied
    words = '<script>alert("1")</script> $\\frac{ | `x` "onload=1'
    proposal, end = {"event": "propose", "number": 0}, {"event": "end", "number": 1}

    def change(line):
        if proposal.items() <= line.items():
            return {**line, "params": {**line["params"], words: words}}
        return {**line, "state": "FAIL", "kind": "raised", "reason": words} if end.items() <= line.items() else line

    rewrite_ledger(folder, change)
    return folder, words


def test_hostile_names_are_shown_and_do_nothing(copied):
    folder, words = hostile(copied)
    report = gather(folder)
    report = replace(report, searched=(*report.searched, words), name=words)
    root = Tree(page(report, "html")).root
    assert not list(root.all("script"))
    assert '<script>alert("1")</script>' in root.words()
    assert not [each for each in walk(root) if any(name.startswith("on") for name in each.attributes)]
    text = page(report, "md")
    assert "<script" not in re.sub(r"`[^`]*`", "", text)
    assert "alert" in text


def test_markdown_escapes_what_it_would_take_for_markup():
    assert markdown("a|b <i> *c* [d](e)\nf & `g | h`") == r"a\|b &lt;i\> \*c\* \[d\](e) f &amp; `g \| h`"


def test_markdown_has_the_same_leaderboard(report):
    text = page(report, "md")
    lines = text.splitlines()
    assert lines[0] == "# Sweep searched"
    assert text.count("**Settings and score of each trial**") == 1
    assert "at an end" not in page(replace(report, at_ends=()), "md")
    wider = page(replace(report, at_ends=("margin 0.8 (of 0.2 to 0.8)",)), "md")
    assert "The best trial is at an end of what was searched: margin 0.8" in wider
    start = next(i for i, line in enumerate(lines) if line.startswith("| trial | state |"))
    assert lines[start + 2].startswith(f"| {report.winner.row.name} | finished | {report.winner.value:.4f} |")
    assert not [line for line in lines if "<svg" in line]


@pytest.mark.long
def test_a_thousand_trials_stay_within_two_megabytes(report):
    one, curve = report.winner, report.curves[0]
    names = [f"t{number:04d}" for number in range(1000)]
    long = {f"training.a_long_name_of_a_setting_{index}": 0.123456789 for index in range(20)}
    many = tuple(replace(one, row=replace(one.row, name=name, params=long)) for name in names)
    curves = tuple(replace(curve, trial=name) for name in names)
    text = page(replace(report, standings=many, winner=many[0], curves=curves, searched=tuple(long)), "html")
    assert len(text.encode()) < LARGEST
    assert "more trials are in <code>babeltune runs" in text


def decision_of(report, **more):
    values = {"verdict": "promote", "reasons": ("4 logged dev metrics reproduced",), "sweep": report.sweep}
    values |= {"trial": report.winner.row.name, "report": 2, "dev": {"dev/everyday/fra-eng/accuracy": 0.5}}
    values |= {"test": {"test/everyday/fra-eng/accuracy": 0.4567}, "chance": {"test/everyday/fra-eng/accuracy": 0.01}}
    return Decision(**{**values, **more})


def test_a_promotion_is_kept_and_the_report_compares_dev_with_sealed(copied, report):
    _, folder, cluster = copied
    places = StorageView(cluster)
    refused = decision_of(report, verdict="refuse", reasons=("the gate did not hold",))
    record_decision(places, folder, refused, dry_run=True)
    assert document(gather(folder)).verdict[-1].endswith(f"refused {refused.trial}: the gate did not hold.")
    promoted = decision_of(report, registered="models:/searched@champion (version 1)")
    record_decision(places, folder, promoted, dry_run=False)
    new_report = gather(folder)
    assert [each.decision.verdict for each in new_report.decisions] == ["refuse", "promote"]
    assert new_report.decisions[0].decision == refused
    content = document(new_report)
    assert "as models:/searched@champion (version 1)." in content.verdict[-1]
    root = Tree(render(content, "html")).root
    (table,) = (cells(each) for each in root.all("table") if each.words().startswith("Dev against sealed"))
    assert table[1] == ["everyday fra-eng", "everyday", "0.5000", "0.4567", "–", "–", "0.0100"]


def test_the_sealed_table_has_a_test_of_one_subset_once(tiny_file, tmp_path):
    folder = make_sweep(tmp_path, read_sweep(tiny_file))
    add_trial(folder, 0, [0.2, 0.6], "finished", temperature=0.1)
    report, test = gather(folder), {"test/everyday/fra-eng/accuracy": 0.4567, "test/everyday/accuracy": 0.4567}
    record = DecisionRecord(time="2026-01-31T12:00:00Z", dry_run=True, decision=decision_of(report, test=test))
    assert page(replace(report, decisions=(record,)), "md").count("| 0.4567 |") == 1


def test_a_later_decision_that_opens_no_test_hides_no_sealed_scores(tiny_file, tmp_path):
    folder = make_sweep(tmp_path, read_sweep(tiny_file))
    add_trial(folder, 0, [0.2, 0.6], "finished", temperature=0.1)
    report = gather(folder)
    opened = decision_of(report, registered="m", test={"test/everyday/fra-eng/accuracy": 0.4567})
    tie = replace(decision_of(report), verdict="tie", reasons=("it is the champion",), test={})
    days = ((f"2026-01-3{day}T12:00:00Z", decision) for day, decision in enumerate((opened, tie)))
    records = tuple(DecisionRecord(time=time, dry_run=False, decision=decision) for time, decision in days)
    report = replace(report, decisions=records)
    text = page(report, "md")
    assert "| 0.4567 |" in text
    assert "No sealed test was scored" not in text
    assert "verdict of 2026-01-30T12:00:00Z: promote" in text
    assert "verdict of 2026-01-31T12:00:00Z: tie" in text
    assert verdict(report)[1] == "Its promotion on 2026-01-31 found that t0000 is the champion already."


@pytest.mark.parametrize("promoted", [False, True])
def test_the_verdict_has_the_lead_and_what_chance_explains(tiny_file, tmp_path, promoted):
    folder = make_sweep(tmp_path, read_sweep(tiny_file))
    add_trial(folder, 0, [0.2, 0.6], "finished", temperature=0.1)
    add_trial(folder, 1, [0.2, 0.5], "finished", temperature=0.2)
    report = gather(folder)
    assert verdict(report)[0].endswith("; it is 0.1000 ahead of t0001.")
    report = replace(report, standings=tuple(replace(each, error=0.1) for each in report.standings))
    report = replace(report, winner=report.standings[0])
    if promoted:
        record = DecisionRecord(
            time="2026-01-31T12:00:00Z", dry_run=False, decision=decision_of(report, registered="m")
        )
        report = replace(report, decisions=(record,))
    first, then = verdict(report)
    assert first.startswith("t0000 is the best of 2 trials: everyday/accuracy 0.6000")
    assert "it is 0.1000 ahead of t0001, less than the 0.2772 by which two such scores may differ" in first
    assert then.startswith("t0000 was promoted on 2026-01-31" if promoted else "`babeltune promote ")


def test_a_lone_finished_trial_is_compared_with_the_best_other_one(tiny_file, tmp_path):
    folder = make_sweep(tmp_path, read_sweep(tiny_file))
    add_trial(folder, 0, [0.2, 0.6], "finished", temperature=0.1)
    assert "the only trial with a score" in verdict(gather(folder))[0]
    assert "ahead" not in verdict(gather(folder))[0]
    add_trial(folder, 1, [0.2], "pruned", temperature=0.2)
    assert verdict(gather(folder))[0].endswith("; no other trial has finished, and t0001 (pruned) had 0.2000.")


def test_a_sealed_test_is_compared_with_a_dev_set_of_its_kind_and_languages():
    dev = dict.fromkeys(("dev/mean_cosine", "dev/sts/eng/spearman", "dev/sts/spearman"), 0.5)
    dev |= {f"dev/{name}/{pair}/accuracy": 0.5 for name in ("news", "talks") for pair in ("fra-eng", "deu-eng")}
    dev |= {f"dev/{name}/accuracy": 0.5 for name in ("news", "talks", "group")}
    expected = {
        "test/talks/fra-eng/accuracy": "dev/talks/fra-eng/accuracy",
        "test/ntrex/fr-en/accuracy": "dev/news/fra-eng/accuracy",
        "test/ntrex/deu-eng/accuracy": "dev/news/deu-eng/accuracy",
        "test/ntrex/accuracy": "dev/news/accuracy",
        **dict.fromkeys(("test/flores/kor-eng/accuracy", "test/flores/accuracy", "test/all/accuracy")),
        "test/stsb/eng/spearman": "dev/sts/eng/spearman",
        "test/group/accuracy": "dev/group/accuracy",
    }
    assert {name: dev_metric_of(name, [*expected], dev, preferred="news") for name in expected} == expected


def test_a_damaged_decision_is_named_and_passed_over(copied, report):
    _, folder, cluster = copied
    record_decision(StorageView(cluster), folder, decision_of(report), dry_run=True)
    (folder.path / "promotions" / "0-t0000.json").write_text("{", encoding="utf-8")
    decisions, damaged = read_decisions(folder)
    assert len(decisions) == 1
    assert damaged == ["promotions/0-t0000.json"]
    assert "promotions/0-t0000.json is damaged" in gather(folder).notes


def test_a_sealed_test_that_nobody_opened_has_no_number(tree):
    (section,) = (each for each in tree.all("section") if each.attributes["id"] == "sealed")
    assert "The sealed tests (everyday) are unopened." in section.words().replace("  ", " ")


def test_a_damaged_trial_is_a_row_and_a_note(copied):
    _, folder, _ = copied
    rewrite_ledger(folder, lambda line: None if (line["event"], line.get("number")) == ("propose", 1) else line)
    report = gather(folder)
    assert [each.row.state for each in report.trials if each.row.name == "t0001"] == ["damaged"]
    assert any("t0001" in note and "restore it from a copy" in note for note in report.notes)
    Tree(page(report, "html"))


def test_two_objectives_over_counted_compute_have_a_front_and_curves_over_seconds(copied):
    sweep, folder, _ = copied
    objectives = (*sweep.objectives, Objective(metric="dev/sts/spearman"))
    training = replace(sweep.training, compute=30.0, rates=(50.0, 5.0))
    budget = replace(sweep.budget, unit="compute")
    folder.write("sweep.json", replace(sweep, objectives=objectives, training=training, budget=budget))

    def with_compute(line):
        if line["event"] != "report":
            return line
        return {**line, "metrics": {**line["metrics"], COMPUTE: 15.0 * line["index"]}}

    rewrite_ledger(folder, with_compute)
    report = gather(folder)
    assert report.curves[0].x == (15.0, 30.0)
    assert [name for name, _ in report.front_metrics][:2] == ["dev/everyday/accuracy", "dev/sts/spearman"]
    text = page(report, "md")
    head = "| everyday/accuracy | 95 % interval | sts/spearman | parameters | sentences/s | compute (s) |"
    assert head in text.replace("\\_", "_")
    assert f"{report.winner.row.name} ★" in text
    assert "in brackets: counted seconds of compute" in text
    assert report.cost.compute_s == 30.0 * sum(each.row.best is not None for each in report.trials)


def test_translations_are_shown_before_and_after_training(searched, report, tree):
    examples = report.examples
    assert (examples.trial, examples.report) == (report.winner.row.name, report.winner.row.best)
    (section,) = (each for each in tree.all("section") if each.attributes["id"] == "translations")
    assert len(list(section.all("figure"))) == 2
    heat, near = (cells(each) for each in section.all("table"))
    scores = report.winner.row.metrics
    weakest = sorted(("fra", "kor"), key=lambda language: scores[f"dev/{examples.dev_set}/{language}-eng/accuracy"])
    assert [row[0] for row in near[1:]] == weakest
    similarity = examples.similarities[0]
    assert heat[1][:3] == [f"1 eng, {weakest[0]}", f"{similarity.before[0][0]:.4f}", f"{similarity.after[0][0]:.4f}"]
    assert heat[1][5] == examples.sentences[0].text


def test_translations_that_could_not_be_shown_are_a_line(copied):
    _, folder, _ = copied
    folder.write("examples.json", {"missing": "they took longer than 60 s"})
    text = page(gather(folder), "md")
    assert f"Not made: they took longer than 60 s. `babeltune report {folder.id}` makes them." in text
    (folder.path / "examples.json").unlink()
    assert "Not made: the sweep has not ended since; a sweep makes them when it ends, or " in page(gather(folder), "md")


def test_without_the_record_of_the_data_there_are_no_intervals_and_it_says_so(copied):
    _, folder, _ = copied
    folder.prepared.unlink()
    report = gather(folder)
    assert not any(each.interval for each in report.standings)
    assert report.notes[0].startswith("Intervals are missing: ")
    Tree(page(report, "html"))


def test_a_sweep_without_a_finished_trial_has_no_report(copied):
    _, folder, cluster = copied
    (folder.path / "report.html").unlink(missing_ok=True)
    rewrite_ledger(folder, lambda line: {**line, "state": "FAIL"} if line["event"] == "end" else line)
    with pytest.raises(SweepError, match="has no finished trial; states: t0000 failed, "):
        write_report(folder, StorageView(cluster))
    assert not (folder.path / "report.html").exists()
