"""Checks the prose of the repository: `make lint` runs it, and it prints a line for each fault and then fails.

It looks at docstrings, comments and texts of Python files, at Markdown, and at the comments of YAML files. It refuses
phrases that are hard to read, names that do not say what a thing is, sentences above 30 words, docstrings of constants
that start in mid-sentence, functions above 60 lines, functions with more than seven parameters, classes with more than
20 methods of their own, and statements with more than three comprehensions, splats and the like. Commands of typer and
their functions in `api.py` have one parameter per option."""

import ast
import inspect
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONGEST_SENTENCE = 30  # words of the longest sentence: test_docs.py has the same bound for the site
LONGEST_FUNCTION = 60  # lines of the longest function, with its docstring
MOST_PARAMETERS = 7  # parameters of a function, without `self` and `cls`
API = "platform/babeltune/api.py"  # the functions of the commands: they have one parameter per option, too
MOST_METHODS = 20  # methods of a class
MOST_PARTS = 3  # comprehensions, walruses, splats and conditional expressions of a statement

AVOIDED = {
    r"\bof which\b": "two sentences",
    r"(?<!there )\bis none\b(?! of| the)": "there is no …",
    r"\bby so much\b": "the amount",
    r"\b[Ss]o many\b": "the number, or its name",
    r"\bwhat it was given\b": "the thing's name",
    r"\bnobody can say\b": "it is not known",
    r"\btells nobody\b": "does nothing",
    r"\bfor who(ever)? looks on\b": "for readers",
}
"""Phrases that STYLE names as hard to read, as patterns, and what to write instead."""
ANY_AVOIDED = re.compile("|".join(AVOIDED))  # most texts have none of them, which one search shows
VAGUE = {"asked", "counted", "found", "given", "kept", "known", "located", "made", "named", "own", "said", "there"}
VAGUE |= {"taken", "wanted"}
"""Names that say what was done to a thing, and not what it is."""
EXEMPT = {"CHANGELOG.md", "tests/prose.py", "tests/test_prose.py"}  # files that name the faults on purpose
CONTINUES = (
    "Of|Or|And|But|That|Whose|Who|Than|Else|Also|Those|Them|It|Its|They|Their|Such|So|Besides|Told|Where|As|By|"
    "Since|From|With|Without|Beside|Before|After|Into|Nor|Not"
)
"""First words of a docstring that needs the name before it to be understood."""
SYMBOLS = "tau|phi|alpha|beta|gamma|lambda|sigma|log|fairseq's|torch's"
"""Small words that may begin a docstring: symbols of papers, and names of libraries."""
MID_SENTENCE = re.compile(rf"(?:{CONTINUES})\b|(?!(?:{SYMBOLS})\b)[a-z]{{2,}}[ ,.:;]")


@dataclass(frozen=True, order=True)
class Fault:
    """One line of the report."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Each sentence of a text with its number of words. Code, formulas, tables and headings do not count."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"^(\s*[|>#].*|!!!.*|\s*---.*|( {4,}|\t)\S.*)$", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", "X", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<[^>]+>", "", text)
    for paragraph in re.split(r"\n\s*\n|\n\s*[-*]\s|\n\s*\d+\.\s", text):
        for sentence in re.split(r"(?<=[.!?:])\s+", " ".join(paragraph.split())):
            yield len(re.findall(r"[A-Za-z][\w'-]*", sentence)), sentence


def long_sentences(path: str, line: int, text: str) -> Iterator[Fault]:
    """A fault for each sentence that is too long."""
    for words, sentence in sentences(text):
        if words > LONGEST_SENTENCE:
            yield Fault(path, line, f"{words} words in a sentence, at most {LONGEST_SENTENCE}: {sentence[:70]}…")


def avoided_phrases(path: str, line: int, text: str) -> Iterator[Fault]:
    """A fault for each phrase that is hard to read."""
    if ANY_AVOIDED.search(text):
        for number, each in enumerate(text.split("\n")):
            for pattern, instead in AVOIDED.items():
                for match in re.finditer(pattern, each):
                    yield Fault(path, line + number, f"{match[0]!r} is hard to read; write: {instead}")


def vague_names(path: str, tree: ast.AST) -> Iterator[Fault]:
    """A fault for each variable, parameter or function whose name does not say what it is."""
    for node in ast.walk(tree):
        name = ""
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = node.name
        if name.strip("_") in VAGUE:
            yield Fault(path, getattr(node, "lineno", 1), f"the name {name!r} does not say what it is")


def documented(tree: ast.AST) -> Iterator[tuple[ast.Constant, ast.stmt | None]]:
    """Every docstring, with the assignment that it describes if it follows one."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for before, each in zip([None, *body], body, strict=False) if isinstance(body, list) else ():
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                yield each.value, before if isinstance(before, ast.Assign | ast.AnnAssign) else None


def is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether typer makes a command of the function: each option is a parameter."""
    return any(ast.unparse(each).startswith("app.command(") for each in node.decorator_list)


def shape(path: str, tree: ast.AST) -> Iterator[Fault]:
    """Faults of functions that are too long or have too many parameters, and of classes with too many methods.

    Commands of typer are exempt. Inherited methods do not count: the class that has them is checked itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
            if methods > MOST_METHODS:
                yield Fault(path, node.lineno, f"{node.name} has {methods} methods, at most {MOST_METHODS}")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_command(node):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LONGEST_FUNCTION:
                yield Fault(path, node.lineno, f"{node.name} has {lines} lines, at most {LONGEST_FUNCTION}")
            names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            count = len([name for name in names if name not in ("self", "cls")])
            if count > MOST_PARAMETERS and path != API:
                yield Fault(path, node.lineno, f"{node.name} has {count} parameters, at most {MOST_PARAMETERS}")


def dense(path: str, tree: ast.AST) -> Iterator[Fault]:
    """Faults of statements that are too much to read at once. Of a compound statement only the header counts."""
    comprehensions = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    for statement in ast.walk(tree):
        if isinstance(statement, ast.stmt):
            children = ast.iter_child_nodes(statement)
            header = [each for each in children if not isinstance(each, ast.stmt | ast.excepthandler | ast.match_case)]
            nodes = [node for child in header for node in ast.walk(child)]
            count = sum(isinstance(node, comprehensions | ast.NamedExpr | ast.Starred | ast.IfExp) for node in nodes)
            count += sum(node.keys.count(None) for node in nodes if isinstance(node, ast.Dict))
            if count > MOST_PARTS:
                text = "comprehensions, walruses, splats and conditional expressions in a statement"
                yield Fault(path, statement.lineno, f"{count} {text}, at most {MOST_PARTS}: name some of them")


def python_faults(path: str, source: str) -> Iterator[Fault]:
    """Faults of a Python file. In tests, only words count."""
    tree = ast.parse(source)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            yield from avoided_phrases(path, token.start[0], token.string)
    if path.startswith("tests/"):
        return
    yield from shape(path, tree)
    yield from vague_names(path, tree)
    yield from dense(path, tree)
    for constant, assigned in documented(tree):
        text = inspect.cleandoc(str(constant.value))
        yield from long_sentences(path, constant.lineno, text)
        if assigned is not None and MID_SENTENCE.match(text):
            yield Fault(path, constant.lineno, f"the docstring of a constant starts in mid-sentence: {text[:60]}…")


def faults_of(path: str, source: str) -> list[Fault]:
    """The faults of one file by its path in the repository."""
    if path in EXEMPT:
        return []
    if path.endswith(".py"):
        return sorted(set(python_faults(path, source)))
    if path.endswith(".md"):
        return [*avoided_phrases(path, 1, source), *long_sentences(path, 1, source)]
    comments = "\n".join(line.partition("#")[2] for line in source.split("\n"))
    return list(avoided_phrases(path, 1, comments))


def shared_names(sources: Mapping[str, str]) -> Iterator[Fault]:
    """A fault for each public class whose name another module's class has. Each paper has its `Config`."""
    places: dict[str, str] = {}
    for path, source in sources.items():
        for node in ast.parse(source).body if path.startswith(("platform/", "methods/")) else ():
            if isinstance(node, ast.ClassDef) and node.name != "Config" and not node.name.startswith("_"):
                first = places.setdefault(node.name, path)
                if first != path:
                    yield Fault(path, node.lineno, f"the class {node.name!r} has the name of one in {first}")


def main() -> None:
    """Checks every file that git knows."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.yaml", "*.yml"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in listed.stdout.split()}
    faults = [fault for path, text in texts.items() for fault in faults_of(path, text)]
    faults += shared_names({path: text for path, text in texts.items() if path.endswith(".py")})
    print(*faults, sep="\n", end="\n" if faults else "")
    sys.exit(f"prose: {len(faults)} faults" if faults else 0)


if __name__ == "__main__":
    main()
