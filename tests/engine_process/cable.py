"""A TCP proxy between two ports of this computer that can be cut."""

import socket
import threading
from contextlib import suppress


class Cable:
    """Forwards connections to `target`, a port of this computer."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._is_cut = threading.Event()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Connections stay open, and nothing arrives any more."""
        self._is_cut.set()

    def close(self) -> None:
        for end in (self._listener, *self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except ConnectionRefusedError:
                    client.close()
                    continue
                self._open += (client, server)
                for ends in ((client, server), (server, client)):
                    threading.Thread(
                        target=self._forward, args=ends, daemon=True
                    ).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while chunk := source.recv(1 << 16):
                if not self._is_cut.is_set():
                    sink.sendall(chunk)
            sink.shutdown(socket.SHUT_RDWR)
