"""The papers' tables on real text, run and written as pages: `python -m benchmarks.tables NAME`, or `make table`.

A table is rows, columns and orderings that a paper claims (`definition.py`). Its rows are trained as sweeps, first over
learning rates and then over seeds (`sweeps.py`), and scored on the sealed sets (`sealed.py`). The findings go into
`docs/measured/tables/NAME.json` (`record.py`), and from there alone into `docs/tables/NAME.md` (`page.py`)."""
