"""Two ranks of one trial on nodes that share no folder, each in a process of its own."""

import sys

from torch import distributed

from babeltune.schema.storage_location import StorageLocation
from babeltune.storage.mirror import Mirror
from babeltune.sweep.sync.worker import settle, with_retries
from babeltune.training.checkpoint import last_good


def main(rank: int, meeting: str, uri: str, cache: str, key: str) -> None:
    """Prints how many sound reports this rank goes on from."""
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    mirror = Mirror(StorageLocation(uri=uri, cache=cache, timeout=20))
    settle(mirror, mirror.path(key), lambda request: with_retries(request, 40, lambda: None), rank, 2, "cpu")
    print(len(last_good(mirror.path(key))), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
