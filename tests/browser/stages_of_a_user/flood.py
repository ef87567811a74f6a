"""So many lines a second for so many seconds."""

import sys
import time

import bridgehead

run = bridgehead.current_run()
rate, seconds = int(run.config.get("rate", 10_000)), float(run.config.get("seconds", 10))
begin, n = time.monotonic(), 0
while time.monotonic() - begin < seconds and not run.should_stop:
    due = int((time.monotonic() - begin) * rate)
    sys.stdout.write("".join(f"flood line {number}\n" for number in range(n, due)))
    sys.stdout.flush()
    n = max(n, due)
    time.sleep(0.05)
print(f"FLOOD-END {n}", flush=True)
if run.should_stop:
    run.exit_stopped()
run.results({"lines": float(n)})
