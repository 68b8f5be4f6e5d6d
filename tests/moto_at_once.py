"""moto's S3 server, which here compares and writes in one step, as S3 does. By itself it writes some time after it has
compared, so that two of several conditional writes can win."""

import threading

from moto import server

ONE_AT_A_TIME = threading.Lock()
CONDITIONS = ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH")


class Application(server.DomainDispatcherApplication):
    """Answers one conditional request after the other."""

    def __call__(self, environ, start_response):
        if not any(name in environ for name in CONDITIONS):
            return super().__call__(environ, start_response)
        with ONE_AT_A_TIME:
            return list(super().__call__(environ, start_response))


if __name__ == "__main__":
    server.DomainDispatcherApplication = Application
    server.main()
