"""MLflow credentials that would go over a network in the clear."""

import pytest

from babeltune.tracking.mlflow_client import about_plain_http, open_client

VARIABLES = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch, tmp_path):
    """None in the environment, and none in a file of the user's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def password(monkeypatch):
    for name, value in zip(VARIABLES, ("ann", "s3cret"), strict=False):
        monkeypatch.setenv(name, value)


def test_a_password_over_plain_http_to_another_host_is_warned_of(password):
    words = about_plain_http("http://tracking.example.com:5000")
    assert "http://tracking.example.com gets a user and a password unencrypted" in words
    assert "use an https address" in words
    assert "s3cret" not in words
    assert "ann" not in words


def test_a_token_and_a_password_in_the_address_are_warned_of_and_not_shown(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "t0ken")
    words = about_plain_http("http://ann:s3cret@10.0.0.7:5000")
    assert "http://10.0.0.7 gets a user and a password and a token unencrypted" in words
    assert "s3cret" not in words
    assert "t0ken" not in words


HERE = ["http://127.0.0.1:5000", "http://[::1]:5000", "http://localhost:5000", "http://mlflow.localhost"]


@pytest.mark.parametrize("uri", ["https://tracking.example.com", *HERE, "sqlite:////tmp/mlflow.db"])
def test_no_warning_where_the_password_stays_here_or_is_encrypted(password, uri):
    assert about_plain_http(uri) == ""


def test_no_warning_without_credentials():
    assert about_plain_http("http://tracking.example.com") == ""


def test_a_client_warns_once(password, caplog):
    for _ in range(2):
        open_client("http://once.example.com")
    messages = [record.message for record in caplog.records if "unencrypted" in record.message]
    assert messages == [about_plain_http("http://once.example.com")]
