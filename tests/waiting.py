"""What a test does in another thread while a sweep runs in its own."""

import threading
import time


def when(condition, action):
    """Does the action in another thread once the condition holds."""

    def work():
        deadline = time.monotonic() + 240
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.05)
        action()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
