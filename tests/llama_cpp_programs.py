"""Programs that stand in for llama.cpp's: they accept and print what its sources say."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_PROGRAM = """#!{python} -S
import json, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

TEXT = {text!r}

def option(name, default=None):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({{"status": "ok"}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            return self.answer({{"tokens": list(body["content"].encode())}})
        if self.path == "/detokenize":
            return self.answer({{"content": bytes(body["tokens"]).decode()}})
        n = body["n_predict"]
        timings = {{"prompt_n": len(body["prompt"]), "prompt_ms": 10.0}}
        timings |= {{"predicted_n": n, "predicted_ms": (n - 1) * 20.0}}
        if "-md" in sys.argv:
            timings |= {{"draft_n": 8, "draft_n_accepted": 6}}
        self.answer({{"content": TEXT, "timings": timings}})

    def answer(self, body):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_):
        pass

def serve():
    HTTPServer(("127.0.0.1", int(option("--port"))), Handler).serve_forever()

def speculate():
    gamma, n = int(option("--spec-draft-n-max", 3)), int(option("-n")) + 1
    print("\\n\\n" + option("-p") + TEXT + "\\n\\n")
    log = "encoded    9 tokens in    0.100 seconds, speed:   90.000 t/s\\n"
    log += f"decoded {{n:4}} tokens in    0.500 seconds, speed:   {{100 - gamma}}.000 t/s\\n"
    print(log + "n_drafted = 10\\nn_accept  = 5\\n", file=sys.stderr)

def simple():
    print(sys.argv[-1] + TEXT)

{function}()
"""
_FUNCTIONS = {
    "llama-server": "serve",
    "llama-speculative-simple": "speculate",
    "llama-simple": "simple",
}


def write_programs(folder: Path, text: str) -> str:
    """Programs whose answer to everything is `text`."""
    folder.mkdir()
    for name, function in _FUNCTIONS.items():
        path = folder / name
        path.write_text(_PROGRAM.format(python=sys.executable, text=text, function=function))
        os.chmod(path, 0o755)
    return str(folder)
