"""Translation memories, XLIFF, catalogues of gettext and workbooks become rows of text in several languages."""

import dataclasses
import hashlib
import zipfile

import pytest

from any_source import any_source
from babeltune.apps.own_files.init import InitOptions, init
from babeltune.data import spreadsheets, translation_files
from babeltune.data.sources import read_source
from babeltune.errors import DataError
from babeltune.schema.records import SheetSource, TranslationFileSource

TMX = """<?xml version="1.0" encoding="{encoding}"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="{version}"><header srclang="fr-FR"/><body>
<tu><note>x</note>
<tuv {lang}="fr-FR"><seg>Le <bpt i="1">&lt;b&gt;</bpt>chat<ept i="1">&lt;/b&gt;</ept> dort.</seg></tuv>
<tuv {lang}="en-US"><seg>The cat <hi>sleeps</hi>.</seg></tuv></tu>
<tu><tuv {lang}="fr-FR"><seg>Bonjour é</seg></tuv><tuv {lang}="de"><seg>Hallo</seg></tuv></tu>
<tu><tuv {lang}="FR-CA"><seg>Salut &amp; fin</seg></tuv><tuv {lang}="en-US"><seg>Hi</seg></tuv>
<tuv {lang}="en-GB"><seg>Hello</seg></tuv></tu>
</body></tmx>
"""
XLIFF_1 = """<?xml version="1.0"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="en"
target-language="fr"><body>
<group><trans-unit id="1"><source>A <g id="1">cat</g><x id="2"/>.</source><seg-source>no</seg-source>
<target state="final">Un <ph id="1">&lt;br/&gt;</ph>chat.</target>
<alt-trans><source>no</source><target>non</target></alt-trans></trans-unit></group>
<trans-unit id="2"><source>New</source><target state="new">New</target></trans-unit>
<trans-unit id="3"><source>Empty</source><target/></trans-unit></body></file></xliff>
"""
XLIFF_2 = """<xliff version="2.0" srcLang="en" trgLang="fr" xmlns="urn:oasis:names:tc:xliff:document:2.0"><file id="f">
<unit id="1"><originalData><data id="d1">&lt;b&gt;</data></originalData><segment state="translated">
<source>A <pc id="1">cat</pc><ph id="2" dataRef="d1"/>.</source><target>Un chat.</target></segment>
<ignorable><source> </source></ignorable><segment state="initial"><source>New</source><target>New</target></segment>
</unit></file></xliff>
"""
PO = """msgid ""
msgstr ""
"Content-Type: text/plain; charset=ISO-8859-1\\n"
"Language: fr\\n"

#, fuzzy
msgid "fuzzy"
msgstr "flou"

msgctxt "menu"
msgid "Open"
msgstr "Ouvrir é"

msgid "Open"
msgstr ""

msgid "one file"
msgid_plural "%d files"
msgstr[0] "un fichier"
msgstr[1] "%d fichiers"

#~ msgid "old"
#~ msgstr "vieux"
"""


def rows_of(path, content, **settings):
    path.write_bytes(content)
    columns = settings.pop("columns", {"fra": "fr", "eng": "en"})
    source = any_source(name="s", path=path.name, columns=columns, **settings)
    read = read_source(source, path.parent, others={})
    return list(zip(*read.columns.values(), strict=True)), read.dropped


@pytest.mark.parametrize(
    ("version", "lang", "encoding"),
    [
        ("1.1", "lang", "ISO-8859-1"),
        ("1.2", "lang", "utf-16"),
        ("1.3", "xml:lang", "cp1250"),
        ("1.4", "xml:lang", "UTF-8"),
    ],
)
def test_a_memory_is_read_in_each_version_and_encoding(tmp_path, version, lang, encoding):
    text = TMX.format(version=version, lang=lang, encoding=encoding)
    rows, left_out = rows_of(tmp_path / "m.tmx", text.encode(encoding), format="tmx")
    assert rows == [("Le chat dort.", "The cat sleeps."), ("Salut & fin", "Hi"), ("Salut & fin", "Hello")]
    assert left_out == {"not translated": 1}
    british, _ = rows_of(tmp_path / "m.tmx", text.encode(encoding), format="tmx", columns={"fra": "fr", "eng": "en-GB"})
    assert british == [("Salut & fin", "Hello")]
    with pytest.raises(DataError, match="no text in 'it'; languages: fr-FR, en-US, de, FR-CA, en-GB"):
        rows_of(tmp_path / "m.tmx", text.encode(encoding), format="tmx", columns={"fra": "fr", "ita": "it"})


@pytest.mark.parametrize("text", [XLIFF_1, XLIFF_2])
def test_xliff_gives_translated_text_without_codes(tmp_path, text):
    rows, left_out = rows_of(tmp_path / "m.xlf", text.encode(), format="xliff")
    assert rows == [("Un chat.", "A cat.")]
    assert left_out == {"not translated": 2 if "1.2" in text else 1}


def test_a_catalogue_leaves_out_what_is_not_translated(tmp_path):
    rows, left_out = rows_of(tmp_path / "fr.po", PO.encode("latin-1"), format="po")
    assert rows == [("Ouvrir é", "Open"), ("un fichier", "one file"), ("%d fichiers", "%d files")]
    assert left_out == {"fuzzy": 1, "not translated": 1, "obsolete": 1}
    by_name, _ = rows_of(
        tmp_path / "fr.po", PO.encode("latin-1"), format="po", columns={"fra": "msgstr", "eng": "msgid"}
    )
    assert by_name == rows


BOMB = "<!DOCTYPE tmx [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;&a;&a;&a;&a;'>]>"
DAMAGED = {
    "entities": (f"{BOMB}<tmx><body><tu><tuv lang='fr'><seg>&b;</seg></tuv></tu></body></tmx>", "declares an entity"),
    "external": ("<!DOCTYPE tmx [<!ENTITY a SYSTEM 'file:///etc/passwd'>]><tmx/>", "declares an entity"),
    "another encoding than declared": (
        '<?xml version="1.0" encoding="UTF-8"?><tmx><body><tu><tuv lang="fr"><seg>é est là.</seg>'.encode("latin-1"),
        r"not XML: .*; name its encoding \(--encoding cp1252\) if it declares another one, or export the file again",
    ),
    "cut": ("<tmx><body><tu><tuv lang='fr'><seg>a", "not XML"),
    "deep": ("<tmx>" + "<a>" * 5000, "more than 1,000 elements stand within one another"),
    "page": ("<html><body><p>a</p></body></html>", "the document is 'html', and neither TMX nor XLIFF"),
    "tag": ("<tmx a='" + "x" * (1 << 18), "without the end of a tag"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_xml_that_would_fill_the_memory_or_is_cut_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr(translation_files, "LONGEST_TAG", 1 << 16)
    text, expected = DAMAGED[name]
    with pytest.raises(DataError, match=f"m.tmx.*{expected}"):
        rows_of(tmp_path / "m.tmx", text if isinstance(text, bytes) else text.encode(), format="tmx")


def test_a_unit_with_a_text_in_no_language_is_one_reason_and_no_language_more(tmp_path):
    units = '<tu><tuv><seg>Un.</seg></tuv><tuv xml:lang="en"><seg>One.</seg></tuv></tu>'
    units += '<tu><tuv xml:lang="fr"><seg>Deux.</seg></tuv><tuv xml:lang="en"><seg>Two.</seg></tuv></tu>'
    content = f"<tmx><body>{units}</body></tmx>".encode()
    rows, left_out = rows_of(tmp_path / "m.tmx", content, format="tmx")
    assert (rows, left_out) == ([("Deux.", "Two.")], {"no xml:lang": 1})
    parts = translation_files.units(tmp_path / "m.tmx", "tmx", hashlib.sha256(), 1000)
    assert translation_files.unit_languages(parts) == ["en", "fr"]


OFFICE = "http://schemas.openxmlformats.org"
MAIN, RELATIONS = f"{OFFICE}/spreadsheetml/2006/main", f"{OFFICE}/officeDocument/2006/relationships"


def workbook(path, **sheets):
    """A minimal XLSX; a cell is text, or a number."""
    listed = "".join(f'<sheet name="{name}" sheetId="{i}" r:id="r{i}"/>' for i, name in enumerate(sheets, 1))
    pages = {f"r{i}": ("worksheet", f"worksheets/s{i}.xml") for i in range(1, len(sheets) + 1)}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_rels/.rels", related({"r1": ("officeDocument", "xl/workbook.xml")}))
        archive.writestr("xl/_rels/workbook.xml.rels", related(pages))
        head = f'<workbook xmlns="{MAIN}" xmlns:r="{RELATIONS}"><sheets>'
        archive.writestr("xl/workbook.xml", f"{head}{listed}</sheets></workbook>")
        for (_, target), rows in zip(pages.values(), sheets.values(), strict=True):
            content = "".join(
                f'<row r="{row}">{"".join(cell(c, row, value) for c, value in zip("ABCD", values, strict=False))}</row>'
                for row, values in enumerate(rows, 1)
            )
            archive.writestr(f"xl/{target}", f'<worksheet xmlns="{MAIN}"><sheetData>{content}</sheetData></worksheet>')


def related(targets):
    links = "".join(
        f'<Relationship Id="{name}" Type="{RELATIONS}/{kind}" Target="{target}"/>'
        for name, (kind, target) in targets.items()
    )
    return f'<Relationships xmlns="{OFFICE}/package/2006/relationships">{links}</Relationships>'


def cell(column, row, value):
    if isinstance(value, str):
        return f'<c r="{column}{row}" t="inlineStr"><is><t>{value}</t></is></c>'
    return f'<c r="{column}{row}"><v>{value}</v></c>'


ROWS = [("French ", "English", "year"), ("Un chat.", "A cat.", 1999), (), ("Un chien.", "A dog.", 2.5)]
COLUMNS = {"fra": "French", "eng": "English"}


def test_a_workbook_is_read_by_the_names_of_its_columns(tmp_path):
    workbook(tmp_path / "b", Text=ROWS, Empty=[])
    source = SheetSource(name="s", path="b", format="xlsx", columns={**COLUMNS, "year": "year"})
    columns = read_source(source, tmp_path, others={}).columns
    assert {name: list(texts) for name, texts in columns.items()} == {
        "fra": ["Un chat.", "Un chien."], "eng": ["A cat.", "A dog."], "year": ["1999", "2.5"],
    }  # fmt: skip
    workbook(tmp_path / "b", Text=ROWS, Other=ROWS)
    with pytest.raises(DataError, match=r"b has 2 sheets \(Text, Other\); name one: `sheet: Text` in a sweep file"):
        read_source(source, tmp_path, others={})
    assert len(read_source(dataclasses.replace(source, sheet="Other"), tmp_path, others={})) == 2
    with pytest.raises(DataError, match="b has no sheet 'Third' with cells; sheets: Text, Other"):
        read_source(dataclasses.replace(source, sheet="Third"), tmp_path, others={})


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ('msgid "one"\nmsgstr 95 ans"\n', 3),
        ('msgid "one"\nmsgstr "\n', 3),
        ('msgid "one\nmsgstr "un"\n', 2),
        ("msgid one\n", 2),
    ],
)
def test_a_line_of_a_catalogue_without_its_quotation_marks_is_named(tmp_path, entry, line):
    (tmp_path / "c.po").write_text(f"# made by hand\n{entry}", encoding="utf-8")
    with pytest.raises(DataError, match=rf"c\.po:{line}: .* is no line of a PO file.*correct it"):
        read_source(
            TranslationFileSource(name="s", path="c.po", format="po", columns={"eng": "msgid", "fra": "msgstr"}),
            tmp_path,
            others={},
        )


def test_a_sheet_that_takes_too_much_memory_is_refused(tmp_path, monkeypatch):
    workbook(tmp_path / "b.xlsx", Text=[*ROWS, *[()] * 9_000, ("x" * 1000, "y", 1)])
    monkeypatch.setattr(spreadsheets, "MEMORY", 1 << 20)
    with pytest.raises(DataError, match=r"b\.xlsx takes more than 1 MB to read; save the sheet as CSV"):
        read_source(SheetSource(name="s", path="b.xlsx", format="xlsx", columns=COLUMNS), tmp_path, others={})


def test_a_catalogue_that_is_too_large_is_refused(tmp_path, monkeypatch):
    (tmp_path / "c.po").write_text('msgid "cat"\nmsgstr "chat"\n' * 50_000, encoding="utf-8")
    monkeypatch.setattr(translation_files, "PO_BYTES", 1 << 20)
    with pytest.raises(DataError, match=r"c\.po has more than 1 MB; split it"):
        read_source(
            any_source(name="s", path="c.po", format="po", columns={"eng": "en", "fra": "fr"}), tmp_path, others={}
        )


def test_init_reads_a_workbook_and_the_pairs_of_a_memory_of_three_languages(tmp_path):
    french = [f"Le chat numéro {i} dort dans le jardin derrière la maison." for i in range(260)]
    english = [f"The cat number {i} sleeps in the garden behind the house." for i in range(260)]
    german = [f"Die Katze Nummer {i} schläft im Garten hinter dem Haus." for i in range(260)]
    workbook(tmp_path / "b.xlsx", Text=[("fr", "en"), *zip(french, english, strict=True)], More=[("a",)])
    proposal = init([f"{tmp_path / 'b.xlsx'}[Text]"], InitOptions(out=tmp_path / "x.yaml"))
    assert proposal.files[0].rows == 260
    units = [("fr", f, "en", e) for f, e in zip(french, english, strict=True)]
    units += [("de", d, "en", e.replace("cat", "CAT2")) for d, e in zip(german, english, strict=True)]
    body = "".join(
        f"<tu><tuv xml:lang='{a}'><seg>{x}</seg></tuv><tuv xml:lang='{b}'><seg>{y}</seg></tuv></tu>"
        for a, x, b, y in units
    )
    (tmp_path / "m.tmx").write_text(f"<tmx version='1.4'><body>{body}</body></tmx>", encoding="utf-8")
    proposal = init([str(tmp_path / "m.tmx")], InitOptions(out=tmp_path / "m.yaml"))
    assert {tuple(sorted(file.columns)): file.rows for file in proposal.files} == {
        ("eng", "fra"): 260,
        ("deu", "eng"): 260,
    }
