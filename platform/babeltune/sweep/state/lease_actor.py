"""The actor whose name is a sweep's lease. It stands alone here: its process imports this file and nothing else."""


class LeaseActor:
    """Lives as long as the driver that took the lease; `max_restarts` brings it back if its process alone dies."""

    def __init__(self, driver: str) -> None:
        self._driver = driver

    async def driver(self) -> str:
        """The driver that took the lease, as JSON."""
        return self._driver


NAMESPACE = "babeltune"  # Ray's namespace of the actors that are found by name
