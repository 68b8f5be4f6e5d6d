"""What a test does in another thread while a sweep runs in its own."""

import threading
import time


def when(condition, action):
    """Does the action in another thread once the condition holds; where it never does, the action ends the wait, and
    the test fails for the thread's error."""

    def work():
        deadline = time.monotonic() + 240
        while not (held := condition()) and time.monotonic() < deadline:
            time.sleep(0.05)
        action()
        assert held, f"{condition} did not hold within 240 s"

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
