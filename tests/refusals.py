"""What is wrong with a section `data`, as a sweep file has it."""

from babeltune.errors import SpecError
from babeltune.planning.data_rules import data_problems
from babeltune.schema.document import Document, validate
from babeltune.schema.records import Data


def refusals(**data):
    """The lines of an error, each with its key."""
    document = Document({"train": [], **data})
    try:
        section = validate(document, Data)
    except SpecError as error:
        return str(error).splitlines()
    return [document.error(key, words) for key, words in data_problems(section)]
