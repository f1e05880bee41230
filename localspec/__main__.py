"""`localspec` and `python -m localspec`.

The command `run` starts the engine before the slower imports.
"""

import sys
from typing import NoReturn


def main() -> NoReturn:
    try:  # Ctrl+C while modules are imported is no traceback either
        from localspec import child_process  # noqa: PLC0415

        # With a closed stream, the engine's pipes would take its place.
        has_streams = None not in (sys.stdin, sys.stdout, sys.stderr)
        is_run = sys.argv[1:2] == ["run"] and "--help" not in sys.argv
        if has_streams and is_run:
            # Both processes import at the same time.
            child_process.start_early(child_process.engine_command())
        from localspec import cli  # noqa: PLC0415
    except KeyboardInterrupt:
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
