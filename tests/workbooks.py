"""Small workbooks, written without a library."""

import zipfile

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"
DATE = 45658  # Excel's number of 1 January 2025


def xlsx(path, **sheets):
    """A workbook; a cell of None is a date."""

    def cell(value):
        if isinstance(value, str):
            return f'<c t="inlineStr"><is><t>{value}</t></is></c>'
        return f"<c><v>{value}</v></c>" if value is not None else f'<c s="1"><v>{DATE}</v></c>'

    parts = {
        "_rels/.rels": f'<Relationships xmlns="{PACKAGE}"><Relationship Id="r" Type="{RELATIONS}/officeDocument" '
        'Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{MAIN}" xmlns:r="{RELATIONS}"><sheets>'
        + "".join(f'<sheet name="{name}" sheetId="{i}" r:id="r{i}"/>' for i, name in enumerate(sheets, 1))
        + "</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{PACKAGE}">'
        + "".join(
            f'<Relationship Id="r{i}" Type="{RELATIONS}/worksheet" Target="worksheets/s{i}.xml"/>'
            for i in range(1, len(sheets) + 1)
        )
        + f'<Relationship Id="rs" Type="{RELATIONS}/styles" Target="styles.xml"/></Relationships>',
        "xl/styles.xml": f'<styleSheet xmlns="{MAIN}"><cellXfs><xf numFmtId="0"/><xf numFmtId="14"/></cellXfs>'
        "</styleSheet>",
    }
    for i, rows in enumerate(sheets.values(), 1):
        lines = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)
        parts[f"xl/worksheets/s{i}.xml"] = f'<worksheet xmlns="{MAIN}"><sheetData>{lines}</sheetData></worksheet>'
    return packed(path, parts)


def ods(path, **sheets):
    def cell(value):
        if isinstance(value, str):
            return f'<table:table-cell office:value-type="string"><text:p>{value}</text:p></table:table-cell>'
        if value is None:
            return '<table:table-cell office:value-type="date" office:date-value="2025-01-01"/>'
        return f'<table:table-cell office:value-type="float" office:value="{value}"/>'

    tables = "".join(
        f'<table:table table:name="{name}">'
        + "".join(f"<table:table-row>{''.join(map(cell, row))}</table:table-row>" for row in rows)
        + "</table:table>"
        for name, rows in sheets.items()
    )
    spaces = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in ("office", "table", "text")
    )
    content = f"<office:document-content {spaces}><office:body><office:spreadsheet>{tables}"
    content += "</office:spreadsheet></office:body></office:document-content>"
    kind = "application/vnd.oasis.opendocument.spreadsheet"
    return packed(path, {"mimetype": kind, "META-INF/manifest.xml": "<manifest/>", "content.xml": content})


def packed(path, parts):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return path
