"""The server of vectors: what both APIs answer, what they refuse, and that an alias may move while it answers."""

import asyncio
import base64
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest
import requests
import uvicorn
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, StaticEmbedding

from babeltune.apps.serving import app as serving
from babeltune.apps.serving import connections
from babeltune.apps.serving.models import BATCH, Batches, Encoded, Served, encoder_of
from babeltune.data.teacher import teacher_folder
from babeltune.errors import SpecError, UnknownNameError
from babeltune.models.hub import BUNDLED
from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Teacher
from babeltune.tracking.mlflow_client import open_client
from ports import free_port
from registering import register
from served import in_a_thread
from small_models import bundled_tokenizer
from waiting import PATIENCE_S, wait_until

TEXTS = ["A boat lies on the beach.", "Un bateau est sur la plage.", "some more words", ""]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Static models of two seeds, each with a linear layer and texts of at most 16 tokens."""
    place = tmp_path_factory.mktemp("models")
    for seed in range(2):
        tokenizer = bundled_tokenizer()
        tokenizer.enable_truncation(16)
        random = np.random.default_rng(seed)
        table = random.standard_normal((tokenizer.get_vocab_size(), 24)).astype(np.float32)
        modules = [StaticEmbedding(tokenizer, embedding_weights=table), Dense(24, 8, activation_function=None)]
        prompts = {"prompts": {"own": "of: "}, "default_prompt_name": "own"}
        SentenceTransformer(modules=[*modules, Normalize()], **prompts).save(str(place / str(seed)))
    return [place / str(seed) for seed in range(2)]


def running(app):
    """The address of a server of this app."""
    more = {"log_level": "warning", "timeout_graceful_shutdown": 5, "http": connections.Connection}
    config = uvicorn.Config(app, port=free_port(), **more)
    return in_a_thread(uvicorn.Server(config))


@pytest.fixture(scope="module")
def address(folders):
    with running(serving.Server([Served(str(folder), Cluster()) for folder in folders]).app()) as url:
        yield url


@pytest.fixture(scope="module")
def vectors(folders):
    """The first model's vectors by sentence-transformers."""
    return SentenceTransformer(str(folders[0])).encode(TEXTS)


def post(url, path, **fields):
    return requests.post(url + path, json=fields, timeout=PATIENCE_S)


@pytest.mark.parametrize("form", ["float", "base64", None])
def test_the_official_client_gets_the_models_vectors(address, folders, vectors, form):
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    extra = {} if form is None else {"encoding_format": form}
    answer = client.embeddings.create(model=str(folders[0]), input=TEXTS, **extra)
    rows = [each.embedding for each in answer.data]
    if form == "base64":
        rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
    assert np.allclose(rows, vectors, atol=1e-6)
    tokenizer = SentenceTransformer(str(folders[0])).tokenizer
    ids = [tokenizer.encode(f"of: {text}", add_special_tokens=False).ids for text in TEXTS]
    assert answer.usage.prompt_tokens == sum(map(len, ids))
    assert [model.id for model in client.models.list()] == [str(folder) for folder in folders]
    other = client.embeddings.create(model=str(folders[1]), input="some more words", dimensions=3).data[0].embedding
    (whole,) = SentenceTransformer(str(folders[1])).encode(["some more words"])
    assert np.allclose(other, whole[:3] / np.linalg.norm(whole[:3]), atol=1e-6)
    with pytest.raises(openai.NotFoundError, match=r"'absent' is not served here; there: "):
        client.embeddings.create(model="absent", input="a")


def test_embed_answers_as_text_embeddings_inference(address, vectors):
    assert np.allclose(post(address, "/embed", inputs=TEXTS[0]).json(), vectors[:1], atol=1e-6)
    assert np.allclose(post(address, "/embed", inputs=TEXTS, truncate=True).json(), vectors, atol=1e-6)
    cut, whole = post(address, "/embed", inputs=["a " * 40, "a " * 14]).json()  # 16 tokens with the prompt
    assert np.allclose(cut, whole, atol=1e-6)
    long = post(address, "/embed", inputs=["a", "a " * 40], truncate=False)
    assert long.status_code == 413
    assert "inputs 1: has more tokens than the model reads" in long.json()["error"]


def test_a_transformer_gives_the_vectors_of_sentence_transformers():
    folder = str(teacher_folder(Teacher()))
    encoded, model = encoder_of(folder, BUNDLED).encode([*TEXTS, "word " * 600]), SentenceTransformer(folder)
    assert np.allclose(encoded.vectors[:4], model.encode(TEXTS), atol=1e-5)
    assert encoded.tokens == [*map(len, model.tokenizer(TEXTS)["input_ids"]), model.max_seq_length]
    assert encoded.cut == [False] * 4 + [True]


def test_a_vector_that_is_not_of_length_1_becomes_so_unless_asked(folders, tmp_path):
    first, *_ = SentenceTransformer(str(folders[0]))
    SentenceTransformer(modules=[first]).save(str(tmp_path / "plain"))
    (whole,) = SentenceTransformer(str(tmp_path / "plain")).encode(["some words"])
    with running(serving.Server([Served(str(tmp_path / "plain"), Cluster())]).app()) as url:
        assert np.allclose(post(url, "/embed", inputs="some words", normalize=False).json(), [whole], atol=1e-6)
        unit = whole / np.linalg.norm(whole)
        assert np.allclose(post(url, "/embed", inputs="some words").json(), [unit], atol=1e-6)


def test_each_of_many_clients_gets_its_vectors_and_they_are_counted(folders):
    texts = [[f"text {client} {place}" for place in range(1 + client % 5)] for client in range(200)]
    with running(serving.Server([Served(str(folders[0]), Cluster())]).app()) as url:
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda part: post(url, "/embed", inputs=part).json(), texts))
        figures = requests.get(f"{url}/metrics", timeout=PATIENCE_S).text
    model = SentenceTransformer(str(folders[0]))
    assert all(np.allclose(rows, model.encode(part), atol=1e-6) for rows, part in zip(answers, texts, strict=True))
    assert 'babeltune_serve_requests_total{path="/embed",status="200"} 200.0' in figures
    assert "babeltune_serve_texts_total 600.0" in figures


@pytest.mark.parametrize(
    ("value", "status", "words"),
    [
        ([], 400, "must be a text or a list of texts, not empty"),
        (None, 400, "must be a text or a list of texts"),
        ({"a": 1}, 400, "must be a text or a list of texts"),
        (["a", [1, 2]], 400, " 1: [1,2] must be a text"),
        (["a", "x" * 1_000_000], 413, " 1: has 1,000,000 characters; a text may have 32,768"),
        (["a"] * 10_000, 413, "has 10,000 texts; a request may have 2,048; send several"),
    ],
)
def test_a_wrong_input_gets_the_error_object_of_its_api(address, value, status, words):
    for path, key in (("/v1/embeddings", "input"), ("/embed", "inputs")):
        answer = post(address, path, **{key: value})
        assert answer.status_code == status
        error = answer.json()["error"]
        if path == "/embed":
            assert answer.json()["error_type"] == "Validation"
        else:
            assert (error["type"], error["param"]) == ("invalid_request_error", "input")
            error = error["message"]
        assert words in error
        assert error.startswith(key)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dimensions": 9}, "dimensions: 9 must be a whole number from 1 to 8"),
        ({"dimensions": True}, "dimensions: true must be a whole number from 1 to 8"),
        ({"dimensions": "3"}, "dimensions: '3' must be a whole number"),
        ({"truncate": 1}, "truncate: 1 must be true or false"),
        ({"prompt_name": "query"}, "leave it out"),
    ],
)
def test_a_wrong_field_is_named_with_its_rule(address, fields, words):
    answer = post(address, "/embed", inputs="a", **fields)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_a_body_that_is_no_json_object_is_refused(address):
    for body in (b"", b"{", b"[1]", b'{"inputs": "\xff"}', b'{"inputs": "\\ud800"}', b"[" * 100_000):
        answer = requests.post(f"{address}/embed", data=body, timeout=PATIENCE_S)
        assert answer.status_code == 400, body
        assert "the body" in answer.json()["error"]


def test_an_unknown_path_or_verb_is_answered_with_those_that_there_are(address):
    assert "/v1/embeddings" in post(address, "/v1/rerank").json()["error"]["message"]
    answer = requests.get(f"{address}/embed", timeout=PATIENCE_S)
    assert (answer.status_code, answer.json()["error"]) == (405, "GET /embed: use POST")


def test_a_request_whose_headers_do_not_end_loses_its_connection(folders, monkeypatch):
    monkeypatch.setattr(connections, "HEADERS_S", 1.0)
    with running(serving.Server([Served(str(folders[0]), Cluster())]).app()) as url:
        host, port = url.removeprefix("http://").split(":")
        for begun in (
            b"",
            b"GET /health HTTP/1.1\r\n",
            b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health HT",
        ):
            with socket.create_connection((host, int(port)), PATIENCE_S) as one:
                one.sendall(begun)
                answer = b""
                while part := one.recv(65536):
                    answer += part
                assert answer.count(b"HTTP/1.1 200") == begun.count(b"\r\n\r\n")


def stream(address, chunks):
    """The answer to a request whose body comes in these chunks; none of them is the last one."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as one:
        one.sendall(b"POST /embed HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            for chunk in chunks:
                one.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        except (BrokenPipeError, ConnectionResetError):  # it has answered and hung up
            pass
        answer = b""
        try:
            while part := one.recv(65536):
                answer += part
        except ConnectionResetError:
            pass
        return answer.decode()


def test_a_body_that_never_ends_is_cut_off_and_others_are_answered(address, monkeypatch):
    answer = stream(address, (b" " * 65536 for _ in range(10_000)))
    assert not answer or "413" in answer.splitlines()[0]
    monkeypatch.setattr(serving, "BODY_S", 0.2)
    late = stream(address, [b'{"inputs": '])
    assert "408" in late.splitlines()[0]
    assert "did not end within 0.2 seconds" in late
    monkeypatch.undo()
    assert post(address, "/embed", inputs="a").status_code == 200
    large = requests.post(f"{address}/embed", data=b" " * (serving.MOST_BYTES + 1), timeout=PATIENCE_S)
    assert large.status_code == 413


def test_a_token_guards_everything_but_the_health(folders):
    with running(serving.Server([Served(str(folders[0]), Cluster())], token="secret", loopback=False).app()) as url:
        for path in ("/metrics", "/v1/models"):
            assert requests.get(url + path, timeout=PATIENCE_S).status_code == 401
            sent = {"authorization": "Bearer secret", "host": "vectors.example"}
            assert requests.get(url + path, headers=sent, timeout=PATIENCE_S).status_code == 200
        assert requests.get(f"{url}/health", timeout=PATIENCE_S).json()["status"] == "ok"
        wrong = openai.OpenAI(base_url=f"{url}/v1", api_key="sécret", max_retries=0, default_headers={"x": "y"})
        with pytest.raises((openai.AuthenticationError, UnicodeEncodeError)):
            wrong.embeddings.create(model="a", input="a")
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0)
        assert len(client.embeddings.create(model=str(folders[0]), input="a").data) == 1


@pytest.mark.parametrize("host", ["attacker.example", "localhost.example", "127.0.0.1.example", "localhost@here", ""])
def test_on_loopback_a_page_of_the_network_gets_the_error_object_of_either_api(address, host):
    for path, key in (("/v1/embeddings", "input"), ("/embed", "inputs")):
        answer = requests.post(address + path, json={key: "a"}, headers={"host": host}, timeout=PATIENCE_S)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert "answers as 127.0.0.1 or localhost only" in (error if path == "/embed" else error["message"])


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:5002", "127.0.0.2", "[::1]:5002"])
def test_every_name_of_this_machine_is_answered(address, host):
    assert requests.get(f"{address}/health", headers={"host": host}, timeout=PATIENCE_S).status_code == 200


class Failing:
    """An encoder of one number, that of the text, which fails for some texts."""

    dim, quick = 1, False

    def __init__(self, sign=1):
        self.sign = sign

    def encode(self, texts):
        numbers = np.array([[self.sign * int(text)] for text in texts], np.float32)
        return Encoded(numbers, [1] * len(texts), [False] * len(texts))


def test_a_text_that_fails_fails_no_other_of_its_batch():
    async def ask():
        batches, encoder = Batches(), Failing()
        calls = [batches.encode(encoder, [text]) for text in ("1", "2", "no number", "4")]
        return await asyncio.gather(*calls, return_exceptions=True)

    one, two, failed, four = asyncio.run(ask())
    assert [float(each.vectors[0, 0]) for each in (one, two, four)] == [1, 2, 4]
    assert isinstance(failed, ValueError)


def test_texts_that_come_at_once_share_a_batch_and_a_large_request_lets_others_in():
    async def ask():
        batches, encoder, sizes = Batches(), Failing(), []
        batches.sizes = sizes.append
        await asyncio.gather(*(batches.encode(encoder, ["1"]) for _ in range(BATCH)))
        large = asyncio.create_task(batches.encode(encoder, ["1"] * (3 * BATCH)))
        await asyncio.sleep(0)
        await batches.encode(encoder, ["2"])
        return sizes, large.done(), (await large).vectors.shape

    sizes, was_done, shape = asyncio.run(ask())
    assert sizes[0] == BATCH
    assert not was_done
    assert shape == (3 * BATCH, 1)


def test_a_request_has_the_vectors_of_one_model_also_if_another_takes_over():
    async def ask():
        batches, before, after = Batches(), Failing(), Failing(-1)
        texts = [str(number) for number in range(1, 3 * BATCH)]
        return await asyncio.gather(batches.encode(before, texts), *(batches.encode(after, ["7"]) for _ in range(9)))

    long, *short = asyncio.run(ask())
    assert long.vectors[:, 0].tolist() == list(range(1, 3 * BATCH))
    assert all(each.vectors.tolist() == [[-7]] for each in short)


def test_more_waiting_texts_than_the_limit_are_refused(address, monkeypatch):
    monkeypatch.setattr(serving, "MOST_WAITING", 2)
    answer = post(address, "/embed", inputs=["a", "b", "c"])
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert post(address, "/embed", inputs=["a", "b"]).status_code == 200


@pytest.fixture
def registry(folders, tmp_path):
    """A cluster with two versions of a registered model, whose champion is the first."""
    cluster = Cluster(storage=str(tmp_path), mlflow=f"sqlite:///{tmp_path}/mlflow.db")
    client = open_client(cluster.mlflow)
    run = client.create_run(client.create_experiment("e", artifact_location=str(tmp_path / "artifacts"))).info.run_id
    register(cluster.mlflow, "m", folders[0], run, "champion", {}, replaces=None)
    return cluster, run


@pytest.mark.slow
def test_a_new_champion_takes_over_and_no_request_fails(registry, folders):
    cluster, run = registry
    first, second = (SentenceTransformer(str(folder)).encode(TEXTS) for folder in folders)
    answers, ended = [], threading.Event()

    def ask(url):
        while not ended.is_set():
            answers.append(post(url, "/embed", inputs=TEXTS))

    model = Served("m@champion", cluster)
    with running(serving.Server([model], alias_s=0.1).app()) as url, ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            pool.submit(ask, url)
        try:
            register(cluster.mlflow, "m", folders[1], run, "champion", {}, replaces="1")
            wait_until(lambda: model.version == "2", "the new champion serves")
            last = post(url, "/embed", inputs=TEXTS)
            response = post(url, "/v1/embeddings", input="a")
            figures = requests.get(f"{url}/metrics", timeout=PATIENCE_S).text
        finally:
            ended.set()
    assert np.allclose(last.json(), second, atol=1e-6)
    assert last.headers["x-model-version"] == response.headers["x-model-version"] == "2"
    assert 'babeltune_serve_model_version{model="m@champion"} 2.0' in figures
    assert {answer.status_code for answer in answers} == {200}
    of_first = [np.allclose(answer.json(), first, atol=1e-6) for answer in answers]
    assert of_first[0]
    for is_first, answer in zip(of_first, answers, strict=True):
        assert is_first or np.allclose(answer.json(), second, atol=1e-6)
        assert answer.headers["x-model-version"] == ("1" if is_first else "2")


@pytest.mark.slow
def test_the_old_champion_goes_on_where_the_registry_fails(registry, folders):
    cluster, _ = registry
    model = Served("models:/m@champion", cluster)
    open_client(cluster.mlflow).delete_registered_model_alias("m", "champion")
    with running(serving.Server([model], alias_s=0.1).app()) as url:
        wait_until(lambda: failures(url) > 1, "two looks have failed")
        assert post(url, "/v1/embeddings", input="a", model="models:/m@champion").status_code == 200
        assert requests.get(f"{url}/health", timeout=PATIENCE_S).json()["models"] == {"m@champion": "1"}


def failures(url):
    figures = requests.get(f"{url}/metrics", timeout=PATIENCE_S).text
    return float(figures.partition('babeltune_serve_alias_failures_total{model="m@champion"} ')[2].split()[0])


@pytest.mark.slow
def test_a_wrong_alias_and_a_model_of_many_languages_are_named(registry, folders, tmp_path):
    cluster, _ = registry
    with pytest.raises(UnknownNameError, match=r"has no models:/m@champio; there: models:/m@champion; did you mean"):
        Served("m@champio", cluster)
    routed = tmp_path / "routed"
    routed.mkdir()
    (routed / "modules.json").write_text(json.dumps([{"type": "Router", "path": "0_Router"}]))
    (routed / "0_Router").mkdir()
    (routed / "0_Router" / "router_config.json").write_text(json.dumps({"structure": {"fra": []}}))
    with pytest.raises(SpecError, match="has layers for each language"):
        encoder_of(str(routed), "routed")
