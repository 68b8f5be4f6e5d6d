"""An afternoon: from two messy files to a model that is served, indexed, pushed and watched, command by command.

The files are made of real text. One is a semicolon table in a code page. A title stands above its German header, a
column names languages, and rows are empty, swapped, repeated or broken. The other is a translation memory with units
that lack a side. Each command runs as a user gives it, in a process of its own, and must end with the code that is
expected. The record has the minutes of each, and `docs/tutorial.md` gets them as a table."""

import argparse
import json
import os
import random
import shlex
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.sax.saxutils import escape

from babeltune.schema.cluster import Cluster
from benchmarks.__main__ import commit
from benchmarks.figures import Figures
from benchmarks.noisy_text import rows_of

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("BABELTUNE_DATA") or ROOT.parent / "shared" / "data")
SWEEP = "clients"
TABLE, MEMORY = {"FR": "fra", "DE": "deu"}, ("jpn", "tanaka_enja")
"""The languages of the table, by what its column says, and the language and corpus of the memory."""
OTHER = "spa"  # the language of the queries that drift, which the model was not trained on
QUESTION = "A storm is coming to the coast."
PORT = 20611
EXTRAS = "quickstart,serve,faiss"  # what the commands need besides the product


@dataclass(frozen=True)
class Step:
    """One command, what it is expected to end with, and what it took."""

    command: str
    exit: int = 0
    seconds: float = 0.0


def texts(data: Path, language: str, count: int, corpus: str = "wmt_news") -> list[tuple[str, str]]:
    """`count` pairs of a language and English, in one random order."""
    rows = rows_of(data / corpus / f"{language}-eng.tsv.gz", (language, "eng"))
    random.Random(0).shuffle(rows)
    return [(left, right) for left, right in rows[:count]]


def write_table(path: Path, rows: Sequence[tuple[str, str, str]]) -> None:
    """A table as an office program exports it."""
    lines = ["Export Kunden-Übersetzungen 2026", "Nr;Sprache;Ausgangstext;Übersetzung (Englisch);Geprüft"]
    for number, (language, left, right) in enumerate(rows):
        if number % 50 == 7:
            left, right = right, left
        if number % 97 == 5:
            right = ""
        cells = ['"' + text.replace('"', '""') + '"' for text in (left, right)]
        line = f"{number};{language};" + ";".join(cells) + f";{'ja' if number % 3 else 'nein'}"
        lines.append(f"{number};{language}" if number % 150 == 9 else line)
        lines += [line] * (number % 20 == 3)
    path.write_bytes("\r\n".join(lines).encode("cp1252", "replace"))


def write_memory(path: Path, pairs: Sequence[tuple[str, str]]) -> None:
    """A translation memory, in which some units have no translation and some stand twice."""
    units = []
    for number, (left, right) in enumerate(pairs):
        side = "" if number % 40 == 2 else f'<tuv xml:lang="ja"><seg>{escape(left)}</seg></tuv>'
        unit = f'<tu tuid="{number}"><tuv xml:lang="en-US"><seg>{escape(right)}</seg></tuv>{side}</tu>'
        units += [unit] * (1 + (number % 30 == 1))
    head = '<header srclang="en-US" segtype="sentence" adminlang="en" datatype="plaintext"/>'
    path.write_text(f'<tmx version="1.4">{head}<body>\n' + "\n".join(units) + "\n</body></tmx>\n", encoding="utf-8")


def write_files(place: Path, data: Path, rows: int) -> None:
    """The two files, a folder of texts to search, and two months of queries that no file has."""
    language, corpus = MEMORY
    table = {word: texts(data, code, 2 * rows) for word, code in TABLE.items()}
    memory = texts(data, language, 2 * rows, corpus)
    mixed = [(word, left, right) for word, pairs in table.items() for left, right in pairs[:rows]]
    random.Random(1).shuffle(mixed)
    write_table(place / "kunden.csv", mixed)
    write_memory(place / "memory.tmx", memory[:rows])
    (place / "texts").mkdir()
    later = [text for pairs in (*table.values(), memory) for pair in pairs[rows:] for text in pair]
    for name, sides in (("news.txt", table["FR"]), ("nachrichten.txt", table["DE"])):
        side = 1 if name == "news.txt" else 0
        (place / "texts" / name).write_text("\n".join(pair[side] for pair in sides[:rows]), encoding="utf-8")
    random.Random(2).shuffle(later)
    spanish = [left for left, _ in texts(data, OTHER, len(later) // 4)]
    (place / "march.txt").write_text("\n".join(later), encoding="utf-8")
    (place / "april.txt").write_text("\n".join([*later[len(spanish) :], *spanish]), encoding="utf-8")


def commands(submit: str) -> list[Step]:
    """The afternoon. `submit`: more options of that command."""
    return [
        Step("babeltune init kunden.csv memory.tmx --out clients.yaml"),
        Step("babeltune plan clients.yaml"),
        Step(f"babeltune submit clients.yaml{submit}"),
        Step("babeltune report clients --out report.html"),
        Step("babeltune promote clients --out my-encoder"),
        Step("babeltune export clients@champion --int8 --out small"),
        Step("babeltune index clients@champion texts/news.txt texts/nachrichten.txt --out my-index"),
        Step(f'babeltune search my-index "{QUESTION}" --top 3'),
        Step(f"babeltune serve clients@champion --port {PORT}"),
        Step("babeltune push clients@champion ./for-the-hub --license apache-2.0"),
        Step("babeltune check clients@champion --queries march.txt"),
        Step("babeltune check clients@champion --queries april.txt", exit=4),
    ]


def install(place: Path) -> tuple[list[Step], Path]:
    """A new environment with this checkout in it, as the first step, and its interpreter."""
    begun, python = time.monotonic(), place / "environment" / "bin" / "python"
    print("installing", flush=True)
    venv.create(python.parents[1], with_pip=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, f"{ROOT}[{EXTRAS}]"], check=True)
    return [Step(f"pip install 'babeltune[{EXTRAS}]'", seconds=round(time.monotonic() - begun, 1))], python


def run(step: Step, place: Path, python: Path) -> tuple[Step, str]:
    """The command with what it took, and what it printed. `SystemExit` if it ends as it should not."""
    print(f"$ {step.command}", flush=True)
    words = [str(python), "-P", "-m", "babeltune.cli", *shlex.split(step.command)[1:], "--json"]
    environment = {**os.environ, "BABELTUNE_HOME": str(place / "storage")}
    begun = time.monotonic()
    with subprocess.Popen(words, cwd=place, env=environment, stdout=subprocess.PIPE, text=True) as process:
        stdout = process.stdout
        assert stdout is not None
        if " serve " in step.command:
            output = "".join(iter(lambda: stdout.readline().rstrip("\n"), "}")) + "}"
            ask()
            process.terminate()
        else:
            output = stdout.read()
    if process.returncode != step.exit:
        sys.exit(f"{step.command} ended with {process.returncode}, and {step.exit} was expected")
    return Step(step.command, step.exit, round(time.monotonic() - begun, 1)), output


def ask() -> None:
    """Asks the server with curl and with OpenAI's client, which must get the same vector."""
    from openai import OpenAI

    address = f"http://127.0.0.1:{PORT}"
    body = json.dumps({"inputs": QUESTION})
    curl = ["curl", "--silent", "--fail", f"{address}/embed", "--json", body]
    (vector,) = json.loads(subprocess.run(curl, capture_output=True, check=True).stdout)
    with OpenAI(base_url=f"{address}/v1", api_key="none") as client:
        peer_vector = client.embeddings.create(model="clients@champion", input=QUESTION).data[0].embedding
    if max(abs(ours - peer) for ours, peer in zip(vector, peer_vector, strict=True)) > 1e-6:
        sys.exit("curl and OpenAI's client got different vectors")


@contextmanager
def trial_at(place: Path, trial: int | str) -> Iterator[str]:
    """The folder of a trial of the afternoon in `place`, which is gone afterwards: by its name, or 0 for the best, and
    2 for the last that keeps its weights."""
    from babeltune.promotion.evaluate import weights_of
    from babeltune.promotion.model_names import trial_of
    from babeltune.sweep.state.folder import find_sweep
    from babeltune.sweep.state.leaderboard import leaderboard
    from babeltune.sweep.sync.view import StorageView

    storage = (place / "storage").absolute()
    view = StorageView(Cluster(storage=str(storage), mlflow=f"sqlite:///{storage}/mlflow.db"))
    trials = [row.name for row in leaderboard(find_sweep(storage, SWEEP)) if row.name[1:].isdigit() and row.metrics]
    name = f"{SWEEP}/{trial if isinstance(trial, str) else trials[trial]}"
    with weights_of(name, trial_of(name, storage), view) as (_, folder):
        yield folder


def table(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    lines = ["| command | minutes |", "|---|--:|"]
    lines += [f"| `{step['command']}` | {step['seconds'] / 60:.1f} |" for step in record["steps"]]
    lines.append(f"| all | {sum(step['seconds'] for step in record['steps']) / 60:.0f} |")
    before, after = (size / 1e6 for size in record["sizes"])
    words = (
        f"\nThe minutes are of {record['cores']} cores, whose load average was {record['load']:.1f} before.\n"
        f"Of {record['pairs']:,} pairs, the best of {record['trials']} trials finds {record['accuracy']:.3f} of the "
        f"sealed translations, and the untrained student {record['untrained']:.3f}.\n"
        f"In eight bits it has {after:.1f} MB instead of {before:.1f} MB, and the dev sets lose {record['lost']:.4f}.\n"
    )
    return "\n".join(lines) + "\n" + words


FIGURES = Figures("afternoon", "docs/tutorial.md", "the afternoon's commands", table)


def main() -> None:
    """Runs the commands, and writes the record and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of the corpora")
    parser.add_argument("--rows", type=int, default=4_000, help="of each language")
    parser.add_argument("--submit", default=" --trials 4", help="more options of `submit`")
    parser.add_argument("--place", type=Path, help="a folder that stays, for benchmarks.exports")
    parser.add_argument("--python", type=Path, help="an interpreter that has the product, instead of a new environment")
    parser.add_argument("--json", type=Path, help=f"the record; {FIGURES.record.name} also writes the page")
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"no corpora in {options.data}; set BABELTUNE_DATA to the folder of the shared data")
    load = os.getloadavg()[0]
    with TemporaryDirectory() if options.place is None else nullcontext(options.place) as name:
        place = Path(name)
        place.mkdir(exist_ok=True)
        write_files(place, options.data, options.rows)
        installed, python = ([], options.python) if options.python else install(place)
        steps, outputs = zip(*(run(step, place, python) for step in commands(options.submit)), strict=True)
    corpus, _, search, _, decision, small, *_ = (json.loads(output) for output in outputs)
    test = next(metric for metric in decision["test"] if metric.count("/") == 2 and metric.endswith("/accuracy"))
    pairs = sum(file["rows"] for file in corpus["files"])
    trials = sum(row["name"][1:].isdigit() for row in search["leaderboard"])
    record = {
        "commit": commit(),
        "cores": os.cpu_count(),
        "load": load,
        "pairs": pairs,
        "trials": trials,
        "accuracy": decision["test"][test],
        "untrained": decision["untrained"][test],
        "sizes": small["sizes"],
        "lost": max(small["losses"].values()),
        "steps": [asdict(step) for step in (*installed, *steps)],
    }
    print(table(record))
    if options.json:
        FIGURES.keep(record, options.json)


if __name__ == "__main__":
    main()
