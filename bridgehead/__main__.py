"""`python -m bridgehead checkpoint --step N FILE…`: commit a checkpoint from a stage in any language."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from bridgehead.errors import BridgeheadError
from bridgehead.run import current_run


def main(argv: list[str] | None = None) -> int:
    """Exit 0 and print the folder when it is committed; else one line on stderr and the error's code."""
    parser = argparse.ArgumentParser(prog="python -m bridgehead")
    commands = parser.add_subparsers(dest="command", required=True)
    save = commands.add_parser("checkpoint", help="copy files into a new checkpoint and commit it")
    save.add_argument("--step", type=int, required=True)
    save.add_argument("--epoch", type=int, default=0)
    save.add_argument("files", nargs="+", type=Path)
    latest = commands.add_parser("latest", help="print the folder of the newest checkpoint that verifies")
    latest.set_defaults(files=[])
    args = parser.parse_args(argv)
    run = current_run()
    try:
        if args.command == "latest":
            found = run.latest_checkpoint()
            print(found.folder if found else "")
            return 0
        with run.checkpoint(args.step, epoch=args.epoch) as folder:
            for path in args.files:
                shutil.copyfile(path, folder / path.name)
    except (BridgeheadError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, BridgeheadError) else 1
    print(run.folder / "checkpoints")
    return 0


if __name__ == "__main__":
    sys.exit(main())
