"""`python -m bridgehead checkpoint --step N FILE…`: commit a checkpoint from a stage in any language.

`python -m bridgehead latest` prints the folder of the one to go on from.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from bridgehead import checkpoints, names
from bridgehead.errors import BridgeheadError, UsageError
from bridgehead.run import current_run


def main(argv: list[str] | None = None) -> int:
    """Exit 0 and print the folder; else one line on stderr and the error's code.

    `latest` ends with names.CHECKPOINT_EXIT_CODE where none verifies, or where what the newest was made with differs.
    """
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
        if args.command == "latest":  # only looks: it may be asked at any time
            found, passed = checkpoints.newest(run.folder / names.CHECKPOINTS)
            for bad in passed:
                print(f"passed over checkpoint {bad.step}: {bad.why}", file=sys.stderr)
            run.refuse(found, passed)
            print(found.folder if found else "")
            return 0
        double = {path.name for path in args.files if sum(other.name == path.name for other in args.files) > 1}
        if double:
            raise UsageError(f"two files are called {sorted(double)[0]!r}; in a checkpoint they would be one")
        with run.checkpoint(args.step, epoch=args.epoch) as folder:
            for path in args.files:
                shutil.copyfile(path, folder / path.name)
    except (BridgeheadError, OSError) as error:
        hint = f" ({error.hint})" if isinstance(error, BridgeheadError) and error.hint else ""
        print(f"error: {error}{hint}", file=sys.stderr)
        return error.exit_code if isinstance(error, BridgeheadError) else 1
    print(run.folder / names.CHECKPOINTS / checkpoints.folder_name(args.step))
    return 0


if __name__ == "__main__":
    sys.exit(main())
