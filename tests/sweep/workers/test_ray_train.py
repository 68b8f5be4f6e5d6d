"""Where the ranks of a worker group meet."""

from unittest.mock import Mock

import psutil
import pytest
from torch.distributed import TCPStore

from babeltune.sweep.workers import ray_train
from babeltune.sweep.workers.ray_train import _node, _open_store, _ProcessGroup


def test_the_store_of_the_ranks_listens_on_its_address_alone():
    port = _open_store("127.0.0.1")
    connections = psutil.Process().net_connections()
    doors = [each.laddr for each in connections if each.status == psutil.CONN_LISTEN and each.laddr.port == port]
    assert doors == [("127.0.0.1", port)]
    TCPStore("127.0.0.1", port, is_master=False).set("rank", "0")
    assert TCPStore("127.0.0.1", port, is_master=False).get("rank") == b"0"
    ray_train.STORES.clear()


@pytest.mark.parametrize(
    ("nodes", "host"),
    [([("a", "10.0.0.1"), ("a", "10.0.0.1")], "127.0.0.1"), ([("a", "10.0.0.1"), ("b", "10.0.0.2")], "10.0.0.1")],
)
def test_ranks_of_one_node_meet_on_loopback_and_others_at_the_address_of_rank_0(nodes, host, monkeypatch):
    monkeypatch.setattr("ray.get", lambda *_, **__: None)
    group = Mock(__len__=lambda _: 2, execute=lambda function: nodes if function is _node else [False, False])
    group.execute_single.return_value = 29500
    _ProcessGroup().on_start(group, Mock())
    group.execute_single.assert_called_once_with(0, _open_store, host)
    assert {call.args[3] for call in group.execute_single_async.call_args_list} == {(host, 29500)}
