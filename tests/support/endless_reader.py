"""A child process in the place of the reader of documents, which does not end."""

import json
import sys
import time


def main() -> None:
    sys.stdin.buffer.read()
    for n_read in (0, 40):
        print(json.dumps({"unit": "page", "n_read": n_read, "n_parts": 10_000}))
    sys.stdout.flush()
    time.sleep(600)


if __name__ == "__main__":
    main()
