"""One sink in a process of its own: `python -m run_control.tracking.sink_process KIND`.

It may hang, leak or die by a signal; the follower ends it after its time and starts another. Messages come on stdin and
answers go to what was stdout; all that the tool itself prints goes to stderr, which is a log file.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import IO, Any

from run_control.tracking import messages
from run_control.tracking.messages import Message, Sink, SinkError
from run_control.tracking.spec import SinkKind

LEAVE_S = 10.0  # for a sink to let go once the follower is gone
Make = Callable[[dict[str, Any]], Sink]


def main(argv: list[str] | None = None) -> int:
    [kind] = sys.argv[1:] if argv is None else argv
    return serve(lambda settings: _make(SinkKind(kind), settings))


def serve(make: Make) -> int:
    """Answer messages until `close`, or until nobody sends any more."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sink: Sink | None = None
    for line in sys.stdin.buffer:
        message = json.loads(line)
        answer: dict[str, Any] = {"ok": True}
        try:
            if message["op"] == messages.OPEN:
                sink = make(message["settings"])
            elif sink is not None and message["op"] == messages.TELL:
                told = sink.tell(Message.from_json(message))
                answer |= {"place": told.place, "holds": told.holds, "behind": told.behind}
            elif sink is not None:
                sink.close()
        except SinkError as error:
            answer = {"ok": False, "error": messages.shown(error.message), "hint": error.hint}
        except Exception as error:  # noqa: BLE001 - the process's edge: a tool raises what it likes, and the next comes
            answer = {"ok": False, "error": messages.shown(f"{type(error).__name__}: {error}"), "hint": ""}
        _say(out, answer)
        if message["op"] == messages.CLOSE:
            return 0
    _leave(sink)
    return 0


def _say(out: IO[bytes], answer: dict[str, Any]) -> None:
    try:
        out.write(json.dumps(answer).encode() + b"\n")
    except OSError:  # the follower is gone, which the next read tells too
        return


def _leave(sink: Sink | None) -> None:
    """The follower died without a word: nobody is there to end us, should the sink hang."""
    last = threading.Timer(LEAVE_S, os._exit, args=(1,))
    last.daemon = True
    last.start()
    if sink is not None:
        try:
            sink.close()
        except Exception as error:  # noqa: BLE001 - the process's edge, and its end
            sys.stderr.write(f"{messages.shown(str(error))}\n")


def _make(kind: SinkKind, settings: dict[str, Any]) -> Sink:
    if kind is SinkKind.TENSORBOARD:
        from run_control.tracking.tensorboard_sink import TensorBoardSink

        return TensorBoardSink(settings)
    if kind is SinkKind.WANDB:
        from run_control.tracking.wandb_sink import WandbSink

        return WandbSink(settings)
    from run_control.tracking.mlflow_sink import MlflowSink

    return MlflowSink(settings)


if __name__ == "__main__":
    sys.exit(main())
