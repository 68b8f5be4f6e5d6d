"""Thin and deep Transformers beside wide and shallow ones: Mao and Nakagawa 2023, tables 1 and 7."""

from benchmarks.tables.definition import Claim, Column, Row, Table

FEW, MANY = "test/tatoeba/accuracy", "test/news/accuracy"
BOTH = (FEW, MANY)
PRINTED = {
    "6 × 128": ("24 × 256", "82.9", "88.5"),
    "3 × 184": ("12 × 384", "82.6", "88.4"),
    "1 × 320": ("3 × 768", "82.2", "87.5"),
}
"""Row -> the paper's shape that it stands for, and its mean of Tatoeba and of UN."""


def shape(layers: int, width: int) -> Row:
    """A Transformer whose layers have about 1.2 million weights."""
    student = (
        f"student={{layers: {layers}, width: {width}, heads: 4, feed_forward: {4 * width}, vocabulary: 8000, "
        "max_tokens: 64, projection: 128}"
    )
    return Row(name=f"{layers} × {width}", changes=(student,))


def claim(better: str, worse: str) -> Claim:
    """The order of two shapes, as the paper prints it of two larger ones."""
    shapes, tatoeba, un = zip(PRINTED[better], PRINTED[worse], strict=True)
    figures = f"Tatoeba {tatoeba[0]} against {tatoeba[1]}, UN {un[0]} against {un[1]}"
    words = f"table 7, means of {shapes[0]} and {shapes[1]}: {figures}"
    ours = "extended by us to small shapes, French and Russian, and news"
    return Claim(better=better, worse=worse, metrics=BOTH, paper=f"{words}; {ours}")


MAO_SHAPES = Table(
    name="mao_shapes",
    title="Thin and deep, or wide and shallow",
    paper="Mao and Nakagawa 2023, tables 1 and 7.",
    budget="100,000 to 200,000 steps of 8,192 sentences in 109 languages. At about 20 million weights in the layers, "
    "24 layers of 256 are compared with 12 of 384 and 3 of 768.",
    ours="Transformers from scratch, with a vocabulary of 8,000, 1.2 million weights in their layers and vectors of "
    "128 dimensions, learn French and Russian with English by additive margin softmax. Only the layers have equally "
    "many weights: a wide student has longer token vectors, and so more weights in all. Batches have 64 pairs. "
    "Compute is counted and not timed, and each row has the same, so each sees about as many pairs. Tatoeba has "
    "1,000 candidates and French news has 10,000.",
    sweep="search_spaces/reproduce/mao_shapes.yaml",
    rows=(shape(6, 128), shape(3, 184), shape(2, 224), shape(1, 320)),
    columns=(Column(metric=FEW, title="Tatoeba, 1,000"), Column(metric=MANY, title="news, 10,000")),
    logged={"pairs": "pairs", "model/parameters": "parameters", "model/sentences_per_second": "sentences a second"},
    claims=(claim("6 × 128", "1 × 320"), claim("6 × 128", "3 × 184"), claim("3 × 184", "1 × 320")),
    rates=(5e-4, 2e-3),
)

LONGER = 3  # how many times as much compute the experiment gets
COMPUTE = f"training.compute={40 * LONGER}"


def longer(row: Row) -> Row:
    """The same student, trained for longer."""
    return Row(name=f"{row.name}, longer", changes=(*row.changes, COMPUTE))


MAO_SHAPES_LONGER = Table(
    name="mao_shapes_longer",
    title="LEALLA: whether deep students need longer",
    paper="A table of our own, on orders that `mao_shapes` does not find.",
    budget="",
    ours=f"The deepest and the widest student of `mao_shapes` get {LONGER} times the compute, at the learning rate "
    "that all had there.",
    sweep=MAO_SHAPES.sweep,
    rows=(longer(shape(6, 128)), longer(shape(1, 320))),
    columns=MAO_SHAPES.columns,
    logged=MAO_SHAPES.logged,
    claims=(Claim(better="6 × 128, longer", worse="1 × 320, longer", metrics=BOTH, paper="deep students need longer"),),
    rates=(5e-4,),
)
